//! What a node does while it has nothing to run: it hears the others, says who is waited for, and whoever stops it is heard.

use super::ends::Ending;
use super::refusal::tell;
use super::rounds::Meeting;
use crate::rendezvous::agree::{Phase, Roll, Standing, State, Step};
use crate::run::front::Supervisor;
use crate::run::launch::Launch;
use crate::run::membership::Membership;
use crate::run::request::{Requests, Way};
use crate::sys::clock;
use crate::sys::poll::Poll;
use crate::sys::signals::Signals;
use crate::sys::tree;
use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

/// Until whoever watches is first told what is waited for, and how often from then on.
const SOON: Duration = Duration::from_secs(2);
const EVERY: Duration = Duration::from_secs(10);
/// How much later than a roll is due something else is said in its place: it is called elsewhere, and has to come here.
const UNDERWAY: Duration = Duration::from_secs(1);

/// What a wait has ended with.
pub enum Waited {
    /// This round begins.
    Round(u64),
    /// Nothing more will.
    Ended(Ending),
}

/// Whoever waits.
pub struct Waiting<'a> {
    launch: &'a Launch<'a>,
    supervisor: &'a Supervisor,
    signals: &'a Signals,
    notify: &'a BTreeSet<i32>,
    /// What has been asked for.
    pub requests: Requests,
    meeting: &'a dyn Meeting,
    front_lost: bool,
}

const MEMBERSHIP: u64 = 0;
const SIGNALS: u64 = 1;
const FRONT: u64 = 2;
const REQUESTS: u64 = 3;

impl<'a> Waiting<'a> {
    /// For the others of this meeting.
    pub fn new(
        launch: &'a Launch<'a>,
        supervisor: &'a Supervisor,
        signals: &'a Signals,
        meeting: &'a dyn Meeting,
    ) -> Self {
        let (notify, requests) = (&launch.notify, Requests::default());
        Self { launch, supervisor, signals, notify, requests, meeting, front_lost: false }
    }

    /// Takes in what has been asked for; whether anything is to be tried further.
    pub fn go_on(&mut self) -> bool {
        let mut came: Vec<(i32, Way)> =
            self.signals.drain().into_iter().map(|signal| (signal, Way::Directly)).collect();
        tree::reap_strays(|pid| self.launch.elders().contains(&pid));
        match self.supervisor.asked() {
            Some(asked) => came.extend(asked.into_iter().map(|signal| (signal, Way::Asked))),
            None => self.front_lost = true,
        }
        for (signal, way) in came {
            // A stop is remembered; of the rest there is nobody to be told.
            self.requests.event(signal, way, self.notify);
        }
        self.requests.stopped_by().is_none() && !self.front_lost
    }

    /// The same, after so long a wait for something to be asked for.
    pub fn pause(&mut self, time: Duration) -> bool {
        let poll = || -> io::Result<()> {
            let poll = Poll::new()?;
            poll.readable(self.signals, SIGNALS)?;
            poll.readable(&self.supervisor.front, FRONT)?;
            poll.readable(&self.supervisor.requests, REQUESTS)?;
            poll.ready(Some(time))
        };
        // Without a wait it is only asked for more often.
        let _ = poll();
        self.go_on()
    }

    /// Why nothing is to be tried further, if so.
    pub fn given_up(&mut self) -> Option<Ending> {
        if self.go_on() {
            return None;
        }
        Some(self.requests.stopped_by().map_or(Ending::FrontLost, Ending::Stopped))
    }

    fn poll(&self, membership: &Membership) -> io::Result<Poll> {
        let poll = Poll::new()?;
        poll.readable(membership, MEMBERSHIP)?;
        poll.readable(self.signals, SIGNALS)?;
        poll.readable(&self.supervisor.front, FRONT)?;
        poll.readable(&self.supervisor.requests, REQUESTS)?;
        Ok(poll)
    }

    /// Waits until there is a round for this node, or none will come.
    pub fn wait(&mut self, membership: &mut Membership) -> io::Result<Waited> {
        let poll = self.poll(membership)?;
        let (began, mut next) = (clock::now(), clock::now() + SOON);
        loop {
            if let Some(ending) = self.given_up() {
                return Ok(Waited::Ended(ending));
            }
            let roll = membership.hear();
            match membership.step() {
                Step::SayReady { seen } => {
                    membership.put(Standing::Ready { seen });
                    continue;
                }
                Step::Start { round } => return Ok(Waited::Round(round)),
                Step::End(end) => return Ok(Waited::Ended(Ending::Job(end))),
                Step::Refused(why) => return Ok(Waited::Ended(Ending::Refused(why))),
                Step::Stop { .. } | Step::Wait => {}
            }
            // Who coordinated has gone, and has said before how it ends.
            if let (Some(_), Some(State { phase: Phase::Stopping { end: Some(end), .. }, .. })) =
                (membership.no_contact(), membership.state())
            {
                return Ok(Waited::Ended(Ending::Job(end.clone())));
            }
            // Who is cut off may take part again, as long as ranks would run on without etcd.
            if membership.is_in_touch()
                && let Some((why, cut_off)) = membership.out_of_contact()
                && !(cut_off.is_some() && membership.may_come_back())
            {
                // Then it is the others that were not found.
                let ending = if membership.is_unbegun() { Ending::NotReached(why) } else { Ending::OutOfContact(why) };
                return Ok(Waited::Ended(ending));
            }
            let now = clock::now();
            let patience = self.meeting.patience();
            let last = Some(began + patience).filter(|_| !membership.is_in_touch());
            if last.is_some_and(|last| now >= last) {
                let why = membership.no_contact().unwrap_or("it does not answer");
                let why = format!("{}: not reached within {:.0} s: {why}", membership.at(), patience.as_secs_f64());
                return Ok(Waited::Ended(Ending::NotReached(why)));
            }
            let gathers = membership.no_contact().is_none()
                && membership.state().is_some_and(|state| state.phase == Phase::Gathering);
            let silent = if gathers { next + UNDERWAY } else { next };
            if let Some(roll) = roll {
                tell(&self.meeting.roll_call(Some(&roll)).unwrap_or_else(|| of_roll(&roll)));
                next = now + EVERY;
            } else if now >= silent {
                let left =
                    last.map_or(String::new(), |last| format!("; {} s left", last.saturating_sub(now).as_secs()));
                let words = self.meeting.roll_call(None).filter(|_| gathers);
                tell(&words.unwrap_or_else(|| waits_for(membership) + &left));
                next = now + EVERY;
            }
            let due = membership.due().filter(|_| membership.is_in_touch());
            let told = if gathers { next + UNDERWAY } else { next };
            let until = [due, last].into_iter().flatten().fold(told, Duration::min);
            poll.wait(Some(until.saturating_sub(clock::now())))?;
        }
    }

    /// Waits until the others have heard that this node has failed, for `limit` at most.
    pub fn let_hear(&mut self, membership: &mut Membership, limit: Duration) -> io::Result<()> {
        let poll = self.poll(membership)?;
        let until = clock::now() + limit;
        while clock::now() < until && self.go_on() {
            membership.hear();
            if membership.state().is_none_or(|state| state.phase != Phase::Running) {
                break;
            }
            poll.wait(Some(until.saturating_sub(clock::now())))?;
        }
        Ok(())
    }
}

fn waits_for(membership: &Membership) -> String {
    let at = membership.at();
    if let Some(why) = membership.no_contact() {
        return format!("waiting for {at}: {why}");
    }
    match membership.state() {
        None => format!("waiting for {at}"),
        Some(State { phase: Phase::Gathering, .. }) => format!("waiting for other nodes at {at}"),
        Some(State { phase: Phase::Running, .. }) => match membership.is_through() {
            true => "the ranks of this node have ended well; waiting for those of the other nodes".into(),
            false => format!("the job at {at} runs without this node: it has all the nodes that it may have; waiting"),
        },
        Some(State { phase: Phase::Stopping { .. }, .. }) => "waiting for the ranks of other nodes to stop".into(),
        Some(State { phase: Phase::Ended { .. }, .. }) => {
            format!("an earlier job of the same name at {at} is ending; waiting for it")
        }
    }
}

/// Who is here, who is not, and how long they are waited for.
fn of_roll(roll: &Roll) -> String {
    let left = roll.left_ms.div_ceil(1000);
    if roll.ready < roll.min {
        return format!("{}; waiting up to {left} s more", who_is_here(roll));
    }
    format!(
        "enough nodes are here ({} of {}): {}; starting in {left} s unless more come",
        roll.ready,
        wanted(roll),
        names(roll)
    )
}

/// Who is here, and who is not.
pub fn who_is_here(roll: &Roll) -> String {
    let missing: Vec<String> = roll.missing.iter().map(usize::to_string).collect();
    let missing = if missing.is_empty() { String::new() } else { format!("; missing: node(s) {}", missing.join(", ")) };
    format!("{} of {} nodes are here: {}{missing}", roll.ready, wanted(roll), names(roll))
}

fn wanted(Roll { min, max, .. }: &Roll) -> String {
    if min == max { max.to_string() } else { format!("{min} to {max}") }
}

fn names(roll: &Roll) -> String {
    let more = roll.ready.saturating_sub(roll.here.len());
    let here = roll.here.join(", ");
    if more > 0 { format!("{here} and {more} more") } else { here }
}
