//! Nodes of a job from the variables of a scheduler: Slurm, Open MPI, Kubernetes.

pub mod detect;
pub mod hostlist;
