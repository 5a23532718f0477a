"""`lightkit completion`: the script by which a shell completes commands, options, keys and their values.

The script asks `lightkit completion words SHELL WORD...` at each press of the tab key. shtab, which jsonargparse
offers, writes every word into the script: it knows no ``key=`` with a value to follow, no key that depends on a class,
and loads torch to build the parsers.
"""

from __future__ import annotations

from collections.abc import Mapping

from lightkit.errors import ConfigError

HELP = """\
usage: lightkit completion SHELL

Print the script that lets a shell complete commands, options, keys, classes and files.

  bash   put into ~/.bashrc:                     eval "$(lightkit completion bash)"
  zsh    put into ~/.zshrc, after its compinit:  eval "$(lightkit completion zsh)"
"""
_BASH = """\
_lightkit() {
    local IFS=$'\\n' current="${COMP_WORDS[COMP_CWORD]}" before="" answer word
    answer="$("$1" completion words bash "${COMP_WORDS[@]:1:COMP_CWORD}" 2> /dev/null)"
    [[ $current == "=" ]] && current=""
    [[ $current == *=* ]] && before="${current%%=*}=" current="${current#*=}"
    COMPREPLY=()
    for word in $answer; do
        case "$word" in
            :files) compopt -o filenames 2> /dev/null; COMPREPLY+=($(compgen -P "$before" -f -- "$current")) ;;
            :folders) compopt -o filenames 2> /dev/null; COMPREPLY+=($(compgen -P "$before" -d -- "$current")) ;;
            *) COMPREPLY+=("$word") ;;
        esac
    done
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=.] && ! -e ${COMPREPLY[0]} ]] && compopt -o nospace 2> /dev/null
    return 0
}
complete -F _lightkit lightkit
"""
_ZSH = """\
#compdef lightkit
_lightkit() {
    local answer="$("${words[1]}" completion words zsh "${(@)words[2,CURRENT]}" 2> /dev/null)"
    local -a choices open closed
    [[ -z $answer ]] && return 1
    choices=("${(@f)answer}")
    choices=(${${choices:#:files}:#:folders})
    open=(${(M)choices:#*[=.]})
    closed=(${choices:#*[=.]})
    (( $#open )) && compadd -S '' -- $open
    (( $#closed )) && compadd -- $closed
    case "$answer" in
        *:files) compset -P '*='; _files ;;
        *:folders) compset -P '*='; _files -/ ;;
    esac
}
compdef _lightkit lightkit
"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH}


def completion(args: list[str], commands: Mapping[str, str | None]) -> int:
    """Print the script of a shell, or what can complete the last of several words, and return the exit code.

    Args:
        args: The shell; or `words`, the shell, and the words of the command line up to the one under the cursor.
        commands: The module of each command, which has its help; None for the stages.

    Raises:
        ConfigError: If no shell is named that there is a script for.
    """
    if args[:1] == ["words"] and len(args) > 1:
        from lightkit.cli.completion_choices import completion_choices  # here: printing the script loads nothing else

        print("\n".join(completion_choices(args[2:], commands=commands, is_split=args[1] == "bash")))
        return 0
    if len(args) != 1 or args[0] not in _SCRIPTS:
        got = f", got {' '.join(args)!r}" if args else ""
        raise ConfigError(f"completion: expected a shell, {' or '.join(_SCRIPTS)}{got}\n{HELP.rstrip()}")
    print(_SCRIPTS[args[0]], end="")
    return 0
