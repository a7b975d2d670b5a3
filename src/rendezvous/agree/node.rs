//! What a node does about the job's state: a function of the two documents, so that whatever was missed changes nothing.

use super::record::Standing;
use super::state::{End, Member, Phase, State, Why};

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: wait.
    Wait,
    /// Say that it is ready, having seen this round.
    SayReady {
        /// The round.
        seen: u64,
    },
    /// Start the ranks of this round, if the node is a member of it, which the members' list says.
    Start {
        /// The round.
        round: u64,
    },
    /// Stop the ranks.
    Stop {
        /// Why; `None`: the others have gone on without this node.
        why: Option<Why>,
        /// How the job ends by it, if it does.
        end: Option<End>,
    },
    /// The job is over.
    End(End),
    /// This node cannot take part.
    Refused(String),
}

/// What a node knows of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Its id: another for every launcher.
    pub id: String,
    /// Where it stands.
    pub standing: Standing,
    /// The last round that it is a member of.
    pub round: Option<u64>,
    /// Whether it has seen the job while that went on. Else what has ended is an earlier job of the same name.
    pub saw_it_open: bool,
    /// The last round whose members it has been told.
    pub told: u64,
    /// The serial of the newest state that it has heard.
    pub serial: u64,
}

impl Seat {
    /// Of a node that has just come.
    pub fn new(id: &str) -> Self {
        let standing = Standing::Ready { seen: 0 };
        Self { id: id.to_owned(), standing, round: None, saw_it_open: false, told: 0, serial: 0 }
    }

    /// Takes note of a state, and of the members of its round where they are told with it. Whether it is the newest: only
    /// then it takes the place of what was heard before.
    pub fn hear(&mut self, state: &State, members: Option<&[Member]>) -> bool {
        if let Some(members) = members.filter(|_| state.round > self.told) {
            self.told = state.round;
            if members.iter().any(|member| member.id == self.id) {
                self.round = Some(state.round);
            }
        }
        if state.serial <= self.serial {
            return false;
        }
        self.serial = state.serial;
        self.saw_it_open |= !matches!(state.phase, Phase::Ended { .. });
        true
    }
}

/// The next step of a node, by the latest state.
pub fn step(seat: &Seat, state: &State) -> Step {
    let (standing, is_member) = (&seat.standing, seat.round == Some(state.round));
    if let Some(why) = state.refused.get(&seat.id) {
        return match standing {
            Standing::Runs { .. } => Step::Stop { why: None, end: None },
            _ => Step::Refused(why.clone()),
        };
    }
    let now = state.round;
    if let (Some(failure), Standing::Failed { failure: own, .. }) = (&state.goes, standing)
        && failure == own
    {
        return Step::End(End::Failed { failure: own.clone(), no_restart: None });
    }
    match (&state.phase, standing) {
        // An earlier job of the same name is on its way out.
        (Phase::Ended { .. }, Standing::Ready { .. })
            if !seat.saw_it_open && !is_member && !state.waited.contains(&seat.id) =>
        {
            Step::Wait
        }
        (Phase::Ended { end }, Standing::Runs { .. }) => Step::Stop { why: None, end: Some(end.clone()) },
        (Phase::Ended { end }, _) => Step::End(end.clone()),
        (_, Standing::Leaves { .. } | Standing::Stops { .. }) => Step::Wait,
        (Phase::Running, Standing::Ready { seen }) if *seen < now => match is_member {
            true => Step::Start { round: now },
            // It would take part in the next; but is it sure that it has no part in this one?
            false if seat.told == now => Step::SayReady { seen: now },
            false => Step::Wait,
        },
        (Phase::Running, Standing::Runs { round }) if *round < now => Step::Stop { why: None, end: None },
        (Phase::Running, Standing::Done { round } | Standing::Failed { round, .. }) if *round < now => {
            Step::SayReady { seen: *round }
        }
        (Phase::Running, _) => Step::Wait,
        (Phase::Stopping { why, end }, Standing::Runs { .. }) => {
            Step::Stop { why: Some(why.clone()), end: end.clone() }
        }
        (Phase::Gathering, Standing::Runs { .. }) => Step::Stop { why: None, end: None },
        (Phase::Stopping { .. } | Phase::Gathering, Standing::Ready { seen }) if *seen < now => {
            Step::SayReady { seen: now }
        }
        // Where the job goes on it will be needed again.
        (Phase::Gathering, Standing::Done { .. } | Standing::Failed { .. }) => Step::SayReady { seen: now },
        (Phase::Stopping { .. } | Phase::Gathering, _) => Step::Wait,
    }
}
