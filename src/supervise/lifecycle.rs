//! Lifecycle of a child: when it is started, and whether the job waits for it.

use crate::model::Role;

/// The lifecycle of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifecycle {
    /// Runs to its end before any other child starts; several of them run one after another, in order. Its
    /// failure fails the job. Once it has exited successfully, no restart runs it again.
    First,
    /// Does the work: when all of these have exited successfully, the job is done.
    Main,
    /// Starts in order with the `Main` children. When these have all exited successfully, it receives SIGTERM, and
    /// its exit status is no failure any more. Until then any status but 0 fails the job. In a job without
    /// a `Main` child it is treated as one.
    Server,
    /// Like a `Server`, but the job waits for it: when all `Main` children have exited successfully, it may run for
    /// `SupervisionPolicy::server_timeout` before it receives SIGTERM, and any status but 0 fails the job.
    AwaitedServer,
}

impl Lifecycle {
    /// The lifecycle of a process with this role.
    pub fn of(role: Role) -> Self {
        match role {
            Role::Tuner => Lifecycle::First,
            Role::Trainer | Role::Mapper => Lifecycle::Main,
            Role::Server | Role::HeterWorker | Role::Coordinator => Lifecycle::Server,
        }
    }
}

/// The lifecycles that apply: without `Main` children, servers count as `Main`.
pub(super) fn effective_lifecycles(lifecycles: &[Lifecycle]) -> impl Iterator<Item = Lifecycle> {
    let has_main = lifecycles.contains(&Lifecycle::Main);
    lifecycles.iter().map(move |one| match one {
        Lifecycle::Server | Lifecycle::AwaitedServer if !has_main => Lifecycle::Main,
        other => *other,
    })
}

#[cfg(test)]
mod tests {
    use super::Lifecycle::{AwaitedServer, First, Main, Server};
    use super::*;

    #[test]
    fn servers_alone_are_waited_for() {
        let effective = |given: &[Lifecycle]| effective_lifecycles(given).collect::<Vec<_>>();
        assert_eq!(effective(&[Server, First, Server]), [Main, First, Main]);
        assert_eq!(effective(&[Server, First, Main]), [Server, First, Main]);
        assert_eq!(effective(&[AwaitedServer, First]), [Main, First]);
        assert_eq!(effective(&[AwaitedServer, Main]), [AwaitedServer, Main]);
        assert_eq!(effective(&[]), []);
    }
}
