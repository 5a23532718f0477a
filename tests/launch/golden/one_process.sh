#!/bin/bash
#SBATCH --job-name=flowers
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --chdir=/home/me/project
#SBATCH --output=runs/flowers/slurm-%j.out
#SBATCH --open-mode=append
#SBATCH --signal=USR1@120
#SBATCH --requeue

export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"  # since Slurm 22.05 srun does not ask sbatch
export _LIGHTKIT_PREEMPTED="runs/flowers/slurm-$SLURM_JOB_ID.preempted"

# Whether so many of the nodes answer, this one first. Slurm needs minutes to notice that one is gone, by when the ranks
# of the others have failed.
answers() {
  timeout 120 srun --overlap --nodelist="$SLURMD_NODENAME" --nodes="$1" --ntasks="$1" --ntasks-per-node=1 true
}

# A rank that ends first leaves the others time to save.
srun --kill-on-bad-exit=0 --wait=120 python -m lightkit fit -c configs/flowers.yaml '--run.name=two words'
code=$?
if [ -e "$_LIGHTKIT_PREEMPTED" ]; then  # there is a checkpoint that the same command resumes
  rm "$_LIGHTKIT_PREEMPTED"
  scontrol requeue "$SLURM_JOB_ID"
elif [ "$code" -ne 0 ] && [ "$SLURM_NNODES" -gt 1 ] && answers 1 && ! answers "$SLURM_NNODES"; then
  echo "a node of this job does not answer any more, so the job goes back into the queue"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
