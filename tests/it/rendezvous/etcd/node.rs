//! A node of a test, and a coordinator that publishes the list of the nodes that are here.

use crate::rendezvous::etcd::server::{Etcd, LIMIT};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rlaunch::protocol::{CoordinatorLogic, Departure, Publication};
use rlaunch::rendezvous::backend::{BackendEvent, RendezvousBackend};
use rlaunch::rendezvous::etcd;
use rlaunch::rendezvous::etcd::{EtcdBackend, join};
use rlaunch::rendezvous::lease::NodeLease;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A state: its number, its coordinator, and the nodes that are here. Published anew with every change.
#[derive(Default)]
pub struct Roster {
    pub by: String,
    pub serial: u64,
    pub nodes: BTreeMap<String, String>,
    /// The nodes that have gone, and since when.
    pub gone: Vec<String>,
    /// By how much the members' list is longer than its contents.
    pub padding: usize,
    pub changed: bool,
}

impl Roster {
    pub fn of(by: &str) -> Box<dyn CoordinatorLogic> {
        Self::long(by, 0)
    }

    pub fn long(by: &str, padding: usize) -> Box<dyn CoordinatorLogic> {
        Box::new(Self { by: by.to_owned(), padding, ..Self::default() })
    }
}

impl CoordinatorLogic for Roster {
    fn resume(&mut self, state: Option<&str>, _: Option<&str>, _: Duration) {
        let serial = state.and_then(|state| state.split(' ').next()?.parse().ok());
        self.serial = serial.unwrap_or(0);
        self.changed = true;
    }

    fn record(&mut self, id: &str, record: &str, _: Duration) {
        self.changed |= self.nodes.insert(id.to_owned(), record.to_owned()).as_deref() != Some(record);
    }

    fn gone(&mut self, id: &str, departure: Departure, _: Duration) {
        let age = if let Departure::Lapsed { age } = departure { age } else { Duration::ZERO };
        self.nodes.remove(id);
        self.gone.push(format!("{id}-{}", age.as_secs()));
        self.changed = true;
    }

    fn turn(&mut self, _: Duration) -> Option<Publication> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        self.serial += 1;
        let said: Vec<String> = self.nodes.iter().map(|(id, record)| format!("{id}={record}")).collect();
        let (by, said, gone) = (&self.by, said.join(","), self.gone.join(","));
        let state = format!("{} {by} [{said}] [{gone}]", self.serial);
        let members = format!("{} {}", self.serial, "m".repeat(self.padding));
        Some(Publication { state, members: Some(members), requires_all_nodes: true })
    }

    fn next_deadline(&self) -> Option<Duration> {
        None
    }

    fn is_over(&self) -> bool {
        self.nodes.is_empty()
    }

    fn shown_to_paddle(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}

/// A node that remembers what it has heard.
pub struct Node {
    pub backend: EtcdBackend,
    pub config: etcd::EtcdConfig,
    pub heard: Vec<BackendEvent>,
    fresh: VecDeque<BackendEvent>,
}

pub fn config(endpoints: &[String], job: &str) -> etcd::EtcdConfig {
    etcd::EtcdConfig { lease: Duration::from_secs(2), ..etcd::EtcdConfig::new(endpoints.to_vec(), job) }
}

impl Node {
    pub fn start(config: &etcd::EtcdConfig, id: &str) -> Self {
        let by = id.to_owned();
        Self::deciding(config, id, move || Roster::of(&by))
    }

    pub fn deciding(
        config: &etcd::EtcdConfig,
        id: &str,
        decide: impl Fn() -> Box<dyn CoordinatorLogic> + Send + 'static,
    ) -> Self {
        Self {
            backend: join(config, id, "new", Arc::new(NodeLease::new().unwrap()), decide).unwrap(),
            config: config.clone(),
            heard: Vec::new(),
            fresh: VecDeque::new(),
        }
    }

    /// The next that it hears; `None`: nothing in that time.
    pub fn next(&mut self, limit: Duration) -> Option<BackendEvent> {
        let until = Instant::now() + limit;
        loop {
            if let Some(news) = self.fresh.pop_front() {
                self.heard.push(news.clone());
                return Some(news);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let timeout = PollTimeout::try_from(left).unwrap();
            poll(&mut [PollFd::new(self.backend.as_fd(), PollFlags::POLLIN)], timeout).unwrap();
            // A lease's number means nothing here.
            let news = self.backend.take_events().into_iter();
            self.fresh.extend(news.filter(|news| !matches!(news, BackendEvent::Joined { .. })));
        }
    }

    /// Hears until something is as it should be.
    pub fn until<T>(&mut self, what: &str, mut fits: impl FnMut(&BackendEvent) -> Option<T>) -> T {
        let until = Instant::now() + LIMIT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.next(left) {
                Some(news) => {
                    if let Some(found) = fits(&news) {
                        return found;
                    }
                }
                None => panic!("{what}: not within {LIMIT:?}; heard {:?}", self.heard),
            }
        }
    }

    /// A state that it has heard with that in it.
    pub fn heard_state(&self, part: &str) -> Option<String> {
        self.heard.iter().find_map(|news| match news {
            BackendEvent::State { state, .. } if state.contains(part) => Some(state.clone()),
            _ => None,
        })
    }

    /// Hears until a state has that in it.
    pub fn until_state(&mut self, part: &str) -> String {
        let of = |news: &BackendEvent| match news {
            BackendEvent::State { state, .. } if state.contains(part) => Some(state.clone()),
            _ => None,
        };
        self.until(&format!("a state with {part}"), of)
    }

    /// The states that it has heard.
    pub fn states(&self) -> Vec<String> {
        let of =
            |news: &BackendEvent| if let BackendEvent::State { state, .. } = news { Some(state.clone()) } else { None };
        self.heard.iter().filter_map(of).collect()
    }

    /// Hears until the state that etcd has.
    pub fn until_latest(&mut self, etcd: &Etcd, job: &str) -> String {
        let posted = etcd.value(&format!("/rlaunch/{job}/board/state"));
        let state = serde_json::from_str::<serde_json::Value>(&posted).unwrap()["state"].as_str().unwrap().to_owned();
        if self.states().last() == Some(&state) { state } else { self.until_state(&state) }
    }

    pub fn until_lost(&mut self) -> String {
        self.until("lost", |news| if let BackendEvent::Lost { why } = news { Some(why.clone()) } else { None })
    }

    pub fn until_hindered(&mut self) -> String {
        self.until("hindered", |news| if let BackendEvent::Hindered { why } = news { Some(why.clone()) } else { None })
    }

    pub fn until_back(&mut self) {
        self.until("back", |news| (*news == BackendEvent::Back).then_some(()));
    }

    pub fn until_refused(&mut self) -> String {
        self.until("refused", |news| match news {
            BackendEvent::Refused { why } | BackendEvent::Superseded { why } => Some(why.clone()),
            _ => None,
        })
    }

    pub fn close(mut self) {
        self.backend.close(Duration::from_secs(10)).unwrap();
    }
}

/// The number of a state, and its coordinator.
pub fn serial_and_leader(state: &str) -> (u64, String) {
    let mut words = state.split(' ');
    (words.next().unwrap().parse().unwrap(), words.next().unwrap().to_owned())
}
