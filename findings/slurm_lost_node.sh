#!/usr/bin/env bash
# Slurm 22.05.8: a job with --requeue whose second node dies is FAILED and stays so, although the manual of sbatch has it
# requeued "after node failure".
#
# Seen, on two nodes: the script's srun notices within seconds that a node is gone (its connection is closed, or, as soon
# as one task has failed for want of the other, --wait is over) and returns 137. The batch script, on the other node,
# ends with that code as scripts do, so that the job is FAILED with NonZeroExitCode. The controller marks the node DOWN
# SlurmdTimeout later (300 s by default, 10 here), when there is no job left to requeue. Only the loss of the node of the
# batch script itself is a node failure in time. A script that has to come back must ask the nodes, as with a short srun
# to all of them, and say `scontrol requeue` itself: shown by the second job, which is requeued and ends as COMPLETED.
#
# Needs root on Debian or Ubuntu; nothing is installed. A controller and two nodes run in namespaces of their own.
set -euo pipefail

if [ "${1:-}" != inside ]; then
  folder=$(mktemp -d /tmp/slurm-XXXXXX)
  trap 'rm -rf "$folder"' EXIT
  mkdir -p "$folder"/{debs,bin,run,state,spool-n1,spool-n2}
  cd "$folder/debs"
  packages="slurmd slurmctld slurm-client slurm-wlm-basic-plugins munge"
  libraries=$(apt-cache depends $packages | sed -nE 's/.*Depends: (lib(munge|hwloc|numa|slurm)\S*)/\1/p' | sort -u)
  apt-get -o APT::Sandbox::User=root download $packages $libraries > /dev/null
  for package in *.deb; do dpkg -x "$package" "$folder/root"; done
  unshare --mount --uts --net --pid --fork --kill-child --mount-proc bash "$(cd "$OLDPWD" && realpath "$0")" inside "$folder"
  exit
fi

folder=$2
cd "$folder"
libraries=$(dirname "$folder"/root/usr/lib/*/slurm-wlm)
for program in root/usr/bin/* root/usr/sbin/*; do
  wrapper=bin/$(basename "${program%-wlm}")
  printf '#!/bin/sh\nLD_LIBRARY_PATH=%s:%s/slurm-wlm exec %s/%s "$@"\n' \
    "$libraries" "$libraries" "$folder" "$program" > "$wrapper"
  chmod 755 "$wrapper"
done
cat > slurm.conf <<CONF
ClusterName=two
SlurmctldHost=ctl(10.77.0.1)
SlurmctldPort=16817
AuthType=auth/munge
AuthInfo=socket=$folder/run/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmctldPidFile=$folder/run/slurmctld.pid
SlurmdPidFile=$folder/run/slurmd-%n.pid
PluginDir=$libraries/slurm-wlm
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
SlurmdTimeout=10
NodeName=n1 NodeAddr=10.77.0.1 NodeHostname=n1 Port=16821 CPUs=2 State=UNKNOWN
NodeName=n2 NodeAddr=10.77.0.1 NodeHostname=n2 Port=16822 CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$folder/slurm.conf PATH=$folder/bin:$PATH
printf '127.0.0.1 localhost\n10.77.0.1 ctl n1 n2\n' > hosts
mount --bind hosts /etc/hosts
hostname ctl
ip link add v0 type veth peer name v1
ip addr add 10.77.0.1/24 dev v0
for interface in v0 v1 lo; do ip link set "$interface" up; done
head -c 1024 /dev/urandom > munge.key
chmod 400 munge.key
chmod 711 run
munged --force --key-file="$folder/munge.key" --socket="$folder/run/munge.socket" --pid-file="$folder/run/munged.pid" \
  --log-file="$folder/munged.log" --seed-file="$folder/run/munged.seed" 2> munged.err
slurmctld -D -c > slurmctld.log 2>&1 &
start_node() { unshare --uts sh -c "hostname $1; exec slurmd -D -N $1 -d $folder/bin/slurmstepd" > "$1.log" 2>&1 & }
state_of() { scontrol show job "$1" --oneliner | sed -E 's/.*JobState=(\S+).*Restarts=([0-9]+).*/\1 \2/'; }
wait_for() { for _ in $(seq 600); do eval "$1" && return; sleep 0.2; done; echo "never: $1"; exit 1; }
idle() { [ "$(sinfo --noheader --format=%t --Node | sort -u)" = idle ]; }
lose_n2() {  # its daemon, its step daemons and its tasks, all at once
  lost=$(grep -lEz 'SLURMD_NODENAME=n2' /proc/[0-9]*/environ 2> /dev/null | cut -d/ -f3; pgrep -f -- '-N n2')
  kill -STOP $lost
  kill -KILL $lost
}
for node in n1 n2; do start_node "$node"; done
wait_for idle

cat > task.sh <<'TASK'
#!/bin/bash
# The first start: task 1 computes for a minute, task 0 fails four seconds later for want of it. The second: all is well.
[ -n "${SLURM_RESTART_COUNT:-}" ] && exit 0
[ "$SLURM_PROCID" = 1 ] && exec sleep 60
sleep 4
exit 1
TASK
cat > plain.sh <<JOB
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --requeue --output=/dev/null
srun --kill-on-bad-exit=0 bash $folder/task.sh
JOB
cp plain.sh asking.sh
cat >> asking.sh <<'JOB'
code=$?
if [ "$code" -ne 0 ] && ! timeout 60 srun --overlap --nodes=2 --ntasks=2 true; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"
JOB
for script in plain asking; do
  job=$(sbatch --parsable "$script.sh")
  wait_for '[ "$(state_of $job)" = "RUNNING 0" ]'
  sleep 1
  lose_n2
  wait_for '[ "$(state_of $job)" != "RUNNING 0" ] && [ "$(state_of $job)" != "COMPLETING 0" ]'
  start_node n2
  wait_for idle
  scontrol update "jobid=$job" StartTime=now 2> /dev/null || true  # a requeued job waits for two minutes
  wait_for '[[ "$(state_of $job)" =~ ^(FAILED|COMPLETED) ]]'
  echo "$script: $(state_of "$job")"
done
[ "$(state_of 1)" = "FAILED 0" ] && [ "$(state_of 2)" = "COMPLETED 1" ]
