"""`lightkit completion`: the script for a shell's completion.

Of commands, options, keys and their values.

The script asks `lightkit completion words SHELL -- WORD...` at each press of the tab key. shtab,
which jsonargparse offers, writes every word into the script: it knows no ``key=`` with a value to
follow, no key that depends on a class, and loads torch to build the parsers.
"""

from __future__ import annotations

from lightkit.cli.command_line import Invocation

_BASH = """\
_lightkit() {
    local IFS=$'\\n' current="${COMP_WORDS[COMP_CWORD]}" before="" answer word
    answer="$("$1" completion words bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2> /dev/null)"
    [[ $current == "=" ]] && current=""
    [[ $current == *=* ]] && before="${current%%=*}=" current="${current#*=}"
    COMPREPLY=()
    for word in $answer; do
        case "$word" in
            :files) compopt -o filenames 2> /dev/null; \
COMPREPLY+=($(compgen -P "$before" -f -- "$current")) ;;
            :folders) compopt -o filenames 2> /dev/null; \
COMPREPLY+=($(compgen -P "$before" -d -- "$current")) ;;
            *) COMPREPLY+=("$word") ;;
        esac
    done
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=.] && ! -e ${COMPREPLY[0]} ]] \
&& compopt -o nospace 2> /dev/null
    return 0
}
complete -F _lightkit lightkit
"""
_ZSH = """\
#compdef lightkit
_lightkit() {
    local answer="$("${words[1]}" completion words zsh -- "${(@)words[2,CURRENT]}" 2> /dev/null)"
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


def completion(invocation: Invocation) -> int:
    """Print the script of a shell, or what can complete the last of several words.

    Return the exit code.

    Args:
        invocation: The shell; or `words`, the shell, and the words of a command line up to the one
            under the cursor.

    Raises:
        ConfigError: If no shell is named that there is a script for.
    """
    inputs = invocation.inputs
    if inputs[:1] == ("words",) and len(inputs) > 1:
        # Here, since printing the script loads nothing else.
        from lightkit.commands.completion.choices import completion_choices

        print("\n".join(completion_choices(inputs[2:], is_split=inputs[1] == "bash")))
        return 0
    if len(inputs) != 1 or inputs[0] not in _SCRIPTS:
        got = f", got {' '.join(inputs)!r}" if inputs else ""
        raise invocation.error(f"expected a shell, {' or '.join(_SCRIPTS)}{got}")
    print(_SCRIPTS[inputs[0]], end="")
    return 0
