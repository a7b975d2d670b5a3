//! What a scheduler has to do with a job: its nodes by the variables of Slurm, Open MPI and Kubernetes, and preemption.

pub mod detect;
pub mod hostlist;
pub mod preempt;
