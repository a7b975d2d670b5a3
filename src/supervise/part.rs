//! What part a child has in the job: when it is started, and whether it is waited for.

use crate::model::Role;

/// A child's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Runs to its end before anything else is started; several of them one after another, in order. A
    /// failure fails the job, as anyone's. Once it has ended well no restart runs it again.
    First,
    /// Does the job's work: when all of these have ended well, the job is done.
    Main,
    /// Is started in order with the `Main` ones, and not waited for: when they have all ended well it is
    /// asked to stop, and no end of it is a failure from then on. Before that code 0 is none either, and
    /// any other end is. Without a `Main` one in the job it is waited for like one.
    Server,
}

impl Part {
    /// Of a process with this role.
    pub fn of(role: Role) -> Self {
        match role {
            Role::Tuner => Part::First,
            Role::Trainer | Role::Mapper => Part::Main,
            Role::Server | Role::HeterWorker | Role::Coordinator => Part::Server,
        }
    }
}

/// The parts as they are played: servers that have nobody to serve are the job's work.
pub(super) fn played(parts: &[Part]) -> impl Iterator<Item = Part> {
    let serve = parts.contains(&Part::Main);
    parts.iter().map(move |part| if *part == Part::Server && !serve { Part::Main } else { *part })
}

#[cfg(test)]
mod tests {
    use super::Part::{First, Main, Server};
    use super::*;

    #[test]
    fn servers_alone_are_waited_for() {
        let played = |parts: &[Part]| played(parts).collect::<Vec<_>>();
        assert_eq!(played(&[Server, First, Server]), [Main, First, Main]);
        assert_eq!(played(&[Server, First, Main]), [Server, First, Main]);
        assert_eq!(played(&[]), []);
    }
}
