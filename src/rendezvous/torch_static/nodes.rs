//! A node's tie to the others: its connection to node 0's store, and on node 0 the store itself.

use super::roll::{Change, Roll, Stands};
use super::words::{self, Info, Numbers};
use crate::rendezvous::torch_store::client::{Client, Left, wait, wire_key};
use crate::rendezvous::torch_store::{Limits, News, Paused, Server, Watch};
use crossbeam_channel::{Receiver, bounded};
use nix::poll::PollFlags;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::io;
use std::net::{IpAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// News that may wait to be heard, beside a few for each node: there is no reason for more.
const UNHEARD: usize = 4096;
/// How long the store may take for what it does at once.
const AT_ONCE: Duration = Duration::from_secs(5);
/// How long others may take to go once they may.
const GOING: Duration = Duration::from_secs(2);
/// How often a node's number may be found taken: whoever had it may just have gone.
const TRIES: u32 = 20;
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

/// A node among others. Forked, it is there twice: one of the two has to be dropped, the other goes on.
pub struct Nodes {
    node: usize,
    nnodes: usize,
    run_id: String,
    client: Client,
    host: Option<Host>,
}

/// What node 0 has besides.
struct Host {
    server: Option<Serving>,
    news: Receiver<News>,
    bell: Arc<EventFd>,
    roll: Roll,
}

enum Serving {
    Now(Server),
    Later(Box<Paused>),
}

/// What has happened while workers run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// A node has gone before its workers had ended well; what it says of that.
    Lost(usize, Option<String>),
    /// Node 0's store has gone.
    StoreGone,
}

impl Nodes {
    /// Node 0: serves the store.
    pub fn serve(
        (listeners, limits): (Vec<TcpListener>, Limits),
        run_id: &str,
        nnodes: usize,
        left: Left<'_>,
    ) -> io::Result<Self> {
        let at = listeners.first().ok_or_else(|| io::Error::other("nowhere to listen"))?.local_addr()?;
        let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
        let (tell, news) = bounded(UNHEARD + 4 * nnodes);
        let prefix = wire_key(run_id, words::ALL);
        let watch = Watch { prefix, news: tell, bell: Arc::clone(&bell) };
        let server = Server::start_with(listeners, limits, Some(watch))?;
        let client = Client::connect(&at.ip().to_string(), at.port(), left)?;
        let host = Host { server: Some(Serving::Now(server)), news, bell, roll: Roll::new(nnodes) };
        let mut nodes = Self { node: 0, nnodes, run_id: run_id.to_owned(), client, host: Some(host) };
        nodes.publish(left)?;
        Ok(nodes)
    }

    /// Another node: connects, as soon as the store is there.
    pub fn reach(
        (host, port): (&str, u16),
        run_id: &str,
        (node, nnodes): (usize, usize),
        left: Left<'_>,
    ) -> io::Result<Self> {
        let client = Client::connect(host, port, left)?;
        Ok(Self { node, nnodes, run_id: run_id.to_owned(), client, host: None })
    }

    fn key(&self, words: &str) -> Vec<u8> {
        wire_key(&self.run_id, words)
    }

    /// Says who this node is. `Ok(false)`: another is there with its number, as far as that can be known.
    pub fn come(&mut self, info: &Info, left: Left<'_>) -> io::Result<bool> {
        let own = self.key(&format!("{}{}", words::INFO, self.node));
        // Only rlaunch takes back the words of who has gone.
        if self.client.check(&[&self.key(words::MISSING)], left)? {
            let mut tries = 0;
            while self.client.check(&[&own], left)? {
                tries += 1;
                if tries > TRIES {
                    return Ok(false);
                }
                self.pass(BETWEEN_TRIES, left)?;
            }
        }
        self.client.add(words::COUNT, 1, left)?;
        self.client.set(&own, &info.encode(self.node), left)?;
        Ok(true)
    }

    /// Lets time pass; ends with an error if the store hangs up meanwhile.
    fn pass(&mut self, time: Duration, left: Left<'_>) -> io::Result<()> {
        match self.client.wait(&[&self.key("torchelastic/rlaunch/never")], &mut capped(time, left)) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(()),
            other => other,
        }
    }

    /// This node's numbers, if node 0 gives them out within `round`, or why there are none.
    pub fn numbers(&mut self, round: Duration, left: Left<'_>) -> io::Result<Option<Result<Numbers, String>>> {
        let key = self.key(&format!("{}{}", words::NUMBERS, self.node));
        match self.client.wait(&[&key], &mut capped(round, left)) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return Ok(None),
            other => other?,
        }
        Ok(Some(Numbers::decode(&self.client.get(&key, left)?)))
    }

    /// Who has not come yet, if node 0 says so.
    pub fn said_missing(&mut self, left: Left<'_>) -> io::Result<Option<String>> {
        let key = self.key(words::MISSING);
        if !self.client.check(&[&key], left)? {
            return Ok(None);
        }
        let text = self.client.get(&key, left)?;
        Ok(Some(String::from_utf8_lossy(&text).chars().filter(|c| !c.is_control()).take(500).collect()))
    }

    /// On node 0: waits for `round` at most until something happens.
    pub fn hear(&mut self, round: Duration, left: Left<'_>) -> io::Result<Vec<Change>> {
        let Some(host) = &self.host else { return Ok(Vec::new()) };
        match wait(host.bell.as_fd(), PollFlags::POLLIN, &mut capped(round, left)) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return Ok(Vec::new()),
            other => other?,
        }
        let changes = self.changes();
        for change in &changes {
            if let Change::WentAgain(node) = change {
                self.client.delete(&self.key(&format!("{}{node}", words::INFO)), left)?;
            }
        }
        if !changes.is_empty() {
            self.publish(left)?;
        }
        Ok(changes)
    }

    fn changes(&mut self) -> Vec<Change> {
        let Some(host) = &mut self.host else { return Vec::new() };
        let _ = host.bell.read();
        host.news.try_iter().filter_map(|news| host.roll.heard(&news)).collect()
    }

    fn publish(&mut self, left: Left<'_>) -> io::Result<()> {
        let missing = words::named(&self.missing());
        self.client.set(&self.key(words::MISSING), missing.as_bytes(), left)
    }

    /// On node 0: those that have not come.
    pub fn missing(&self) -> Vec<usize> {
        self.host.as_ref().map(|host| host.roll.missing()).unwrap_or_default()
    }

    /// On node 0: gives out the numbers, once all have come; its own, and whether all have the same workers. The store
    /// rests then until `go_on`.
    pub fn give_out(&mut self, left: Left<'_>) -> io::Result<Option<Numbers>> {
        let Some(all) = self.host.as_mut().and_then(|host| host.roll.complete()) else { return Ok(None) };
        let numbers = words::numbers(&all);
        for (node, numbers) in numbers.iter().enumerate() {
            self.client.set(&self.key(&format!("{}{node}", words::NUMBERS)), &numbers.encode(), left)?;
        }
        // It has done that when it has answered this.
        self.client.check(&[words::COUNT], left)?;
        if let Some(host) = &mut self.host
            && let Some(Serving::Now(server)) = host.server.take()
        {
            host.server = Some(Serving::Later(Box::new(server.pause()?)));
        }
        Ok(numbers.first().copied())
    }

    /// On node 0: tells all who are there that nothing comes of it, and lets them hear it.
    pub fn call_off(&mut self, why: &str) {
        let text = serde_json::Value::from(why).to_string();
        let mut left = patience(GOING);
        for node in 1..self.nnodes {
            let key = self.key(&format!("{}{node}", words::NUMBERS));
            if self.client.set(&key, text.as_bytes(), &mut left).is_err() {
                return;
            }
        }
        self.let_go();
    }

    /// Waits for a moment until all others have gone.
    fn let_go(&mut self) {
        let mut left = patience(GOING);
        let gone = |stands: &Stands| matches!(stands, Stands::Left | Stands::Lost | Stands::Missing);
        while let Some(host) = &self.host
            && host.roll.with(|stands| !gone(stands)).iter().any(|node| *node != 0)
        {
            if wait(host.bell.as_fd(), PollFlags::POLLIN, &mut left).is_err() {
                return;
            }
            self.changes();
        }
    }

    /// This machine's address towards the store.
    pub fn local_address(&self) -> io::Result<IpAddr> {
        self.client.local_address()
    }

    /// Serves on, in this process.
    pub fn go_on(&mut self) -> io::Result<()> {
        if let Some(host) = &mut self.host
            && let Some(Serving::Later(paused)) = host.server.take()
        {
            host.server = Some(Serving::Now(paused.go_on()?));
        }
        Ok(())
    }

    /// What has happened, once the descriptor is readable.
    pub fn turn(&mut self) -> Vec<Told> {
        if self.host.is_none() {
            return vec![Told::StoreGone];
        }
        let told = |change| match change {
            Change::Lost(node, why) => Some(Told::Lost(node, why)),
            _ => None,
        };
        self.changes().into_iter().filter_map(told).collect()
    }

    /// This node's workers have ended well. Whether the others are to be waited for: they need the store.
    pub fn ended_well(&mut self) -> bool {
        let mut left = patience(AT_ONCE);
        let (count, all) = (self.key(words::ENDED), self.key(words::ALL_ENDED));
        // Without the store nobody waits for this node.
        if self.client.add(&count, 1, &mut left).is_ok_and(|ended| ended == self.nnodes as i64) {
            let _ = self.client.set(&all, b"all", &mut left);
        }
        self.changes();
        self.host.is_some()
    }

    /// This node's workers have not ended well.
    pub fn failed(&mut self, why: &str) {
        let key = self.key(&format!("{}{}", words::FAILED, self.node));
        let why: String = why.chars().take(200).collect();
        let _ = self.client.set(&key, why.as_bytes(), &mut patience(AT_ONCE));
    }

    /// On node 0: other nodes that are still at work.
    pub fn at_work(&self) -> Vec<usize> {
        let at_work = self.host.as_ref().map(|host| host.roll.at_work()).unwrap_or_default();
        at_work.into_iter().filter(|node| *node != 0).collect()
    }

    /// On node 0, when nobody is at work any more: lets those go who wait for others.
    pub fn release(&mut self) {
        let all = self.key(words::ALL_ENDED);
        if self.client.set(&all, b"all", &mut patience(AT_ONCE)).is_ok() {
            self.let_go();
        }
    }
}

impl AsFd for Nodes {
    /// Readable: `turn` has something to tell.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.host {
            Some(host) => host.bell.as_fd(),
            None => self.client.as_fd(),
        }
    }
}

/// A slice of time for which a wait does not ask again.
const SLICE: Duration = Duration::from_millis(100);

/// About so much time, without a clock: waits ask once a slice.
fn patience(time: Duration) -> impl FnMut() -> io::Result<Duration> {
    let mut slices = time.as_millis() / SLICE.as_millis();
    move || {
        slices = slices.saturating_sub(1);
        Ok(SLICE * slices.min(1) as u32)
    }
}

/// No longer than `time`, and than what is left.
fn capped<'a>(time: Duration, left: Left<'a>) -> impl FnMut() -> io::Result<Duration> + 'a {
    let mut slices = time.as_millis() / SLICE.as_millis() + 1;
    move || {
        slices = slices.saturating_sub(1);
        Ok(left()?.min(SLICE * slices.min(1) as u32))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;
    use crate::rendezvous::torch_store::listen;
    use std::thread;

    const LONG: Duration = Duration::from_secs(20);

    fn info(workers: usize) -> Info {
        Info { role: "default".into(), workers }
    }

    fn other(port: u16, node: usize) -> Nodes {
        Nodes::reach(("127.0.0.1", port), "run", (node, 2), &mut patience(LONG)).unwrap()
    }

    fn met(zero: &mut Nodes) -> Numbers {
        loop {
            zero.hear(Duration::from_secs(1), &mut patience(LONG)).unwrap();
            if let Some(numbers) = zero.give_out(&mut patience(LONG)).unwrap() {
                return numbers;
            }
        }
    }

    #[test]
    fn nodes_meet_and_part() {
        let listeners = listen::loopback(0).unwrap();
        let port = listeners[0].local_addr().unwrap().port();
        let mut zero = Nodes::serve((listeners, Limits::default()), "run", 2, &mut patience(LONG)).unwrap();
        assert!(zero.come(&info(2), &mut patience(LONG)).unwrap());
        assert_eq!(zero.missing(), [0, 1], "nothing is heard yet");
        let (rests, goes_on) = bounded(1);
        let one = thread::spawn(move || {
            let mut one = other(port, 1);
            assert!(one.come(&info(3), &mut patience(LONG)).unwrap());
            goes_on.recv().unwrap();
            // While the store rests this has no answer.
            let numbers = one.numbers(LONG, &mut patience(LONG)).unwrap().unwrap().unwrap();
            assert!(!one.ended_well());
            numbers
        });
        let own = met(&mut zero);
        rests.send(()).unwrap();
        zero.go_on().unwrap();
        let others = one.join().unwrap();
        assert_eq!((own.first_rank, others.first_rank), (0, 2));
        assert_eq!((own.world_size, others.world_size), (5, 5));
        assert!(zero.ended_well());
        let left: Left<'_> = &mut patience(LONG);
        while !zero.at_work().is_empty() {
            wait(zero.as_fd(), PollFlags::POLLIN, left).unwrap();
            assert_eq!(zero.turn(), []);
        }
        zero.release();
    }

    #[test]
    fn who_comes_too_late_with_a_number_is_told() {
        let listeners = listen::loopback(0).unwrap();
        let port = listeners[0].local_addr().unwrap().port();
        let mut zero = Nodes::serve((listeners, Limits::default()), "run", 2, &mut patience(LONG)).unwrap();
        zero.come(&info(1), &mut patience(LONG)).unwrap();
        let mut one = other(port, 1);
        assert!(one.come(&info(1), &mut patience(LONG)).unwrap());
        met(&mut zero);
        zero.go_on().unwrap();
        assert!(!other(port, 1).come(&info(1), &mut patience(LONG)).unwrap());
        one.failed("rank 1: exit code 3");
        drop(one);
        let left: Left<'_> = &mut patience(LONG);
        let mut told = Vec::new();
        while told.is_empty() {
            wait(zero.as_fd(), PollFlags::POLLIN, left).unwrap();
            told = zero.turn();
        }
        assert_eq!(told, [Told::Lost(1, Some("rank 1: exit code 3".into()))]);
    }
}
