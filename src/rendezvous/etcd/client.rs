//! Requests to etcd's JSON gateway: the endpoint that answered last is asked first, another when it fails.

use super::wire::{Line, Traffic, Wires};
use super::{Etcd, tls, words};
use rustls::ClientConfig;
use serde_json::{Value, json};
use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use ureq::http::{Response, Uri};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::{Agent, Body};

/// Answers longer than this are not etcd's: it takes 1.5 MiB in one request, and lists come in pieces.
const LONGEST: u64 = 64 << 20;
/// No endpoint gets less than this, while there is so much.
const LEAST: Duration = Duration::from_millis(200);

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Nobody could give one; they may later.
    Contact(String),
    /// Etcd says no.
    No {
        /// By the codes of gRPC.
        code: i64,
        /// In its words.
        message: String,
    },
    /// It never will; for people.
    Refused(String),
    /// The tie has been closed.
    Closed,
}

/// The code of what is not there: a lease.
pub(super) const NOT_FOUND: i64 = 5;

/// A server, and all that talk with it for one tie.
pub(super) struct Client {
    endpoints: Vec<String>,
    tls: Option<Arc<ClientConfig>>,
    user: Option<(String, String)>,
    pub(super) timeout: Duration,
    began: Instant,
    /// When the node is told at the latest that there is no contact, in ms: nothing that it asks may hold that up.
    told_by_ms: AtomicU64,
    /// When the node has left, whoever answers, in ms.
    left_by_ms: AtomicU64,
    /// The number of the endpoint that is asked first.
    preferred: AtomicUsize,
    /// Whether etcd has ever answered.
    met: AtomicBool,
    token: Mutex<Option<String>>,
    pub(super) traffic: Arc<Traffic>,
    streams: Mutex<Vec<Weak<Line>>>,
}

impl Client {
    pub(super) fn new(config: &Etcd) -> io::Result<Arc<Self>> {
        let wants_tls = config.tls.is_some();
        let endpoints =
            config.endpoints.iter().map(|text| endpoint(text, wants_tls)).collect::<io::Result<Vec<_>>>()?;
        if endpoints.is_empty() {
            return Err(wrong("no endpoint is given"));
        }
        let needs_tls = endpoints.iter().any(|one| one.starts_with("https:"));
        let first = fastrand::usize(..endpoints.len());
        #[expect(clippy::disallowed_methods, reason = "a floor's siblings do not use each other: sys is one")]
        let began = Instant::now();
        Ok(Arc::new(Self {
            endpoints,
            tls: if needs_tls { Some(tls::config(config.tls.as_ref())?) } else { None },
            user: config.user.clone(),
            timeout: config.timeout.min(config.lease / 3),
            began,
            told_by_ms: AtomicU64::new(0),
            left_by_ms: AtomicU64::new(u64::MAX),
            // Not all nodes at the same member.
            preferred: AtomicUsize::new(first),
            met: AtomicBool::new(false),
            token: Mutex::new(None),
            traffic: Arc::default(),
            streams: Mutex::new(Vec::new()),
        }))
    }

    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Contact holds until then; who has asked for something by then has to listen again.
    pub(super) fn hold_until(&self, until: Duration) {
        self.told_by_ms.store(in_ms(until), Ordering::Relaxed);
    }

    /// The node leaves, which is over by then.
    pub(super) fn leave_by(&self, until: Duration) {
        self.left_by_ms.store(in_ms(until), Ordering::Relaxed);
    }

    /// By when what is asked now has to be answered. Who leaves does not have to be told of anything.
    pub(super) fn until(&self) -> Duration {
        match self.left_by_ms.load(Ordering::Relaxed) {
            u64::MAX => Duration::from_millis(self.told_by_ms.load(Ordering::Relaxed)),
            _ => self.now() + self.timeout,
        }
    }

    fn left_by(&self) -> Duration {
        Duration::from_millis(self.left_by_ms.load(Ordering::Relaxed))
    }

    fn preferred(&self) -> usize {
        self.preferred.load(Ordering::Relaxed)
    }

    /// That endpoint answers; streams from another are begun anew there.
    fn prefer(&self, at: usize) {
        self.met.store(true, Ordering::Relaxed);
        if self.preferred.swap(at, Ordering::Relaxed) == at {
            return;
        }
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|line| line.strong_count() > 0);
        for line in streams.iter().filter_map(Weak::upgrade) {
            if line.endpoint.load(Ordering::Relaxed) != at {
                line.hang_up();
            }
        }
    }
}

/// One endpoint's turn to answer.
#[derive(Clone, Copy)]
struct Try {
    at: usize,
    share: Duration,
    until: Duration,
}

/// One thread's way to the server.
pub(super) struct Caller {
    pub(super) client: Arc<Client>,
    pub(super) line: Arc<Line>,
    agent: Agent,
}

impl Caller {
    /// For questions and answers.
    pub(super) fn new(client: &Arc<Client>) -> Self {
        Self::with(client)
    }

    /// For a stream.
    pub(super) fn streaming(client: &Arc<Client>) -> Self {
        let caller = Self::with(client);
        client.streams.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&caller.line));
        caller
    }

    fn with(client: &Arc<Client>) -> Self {
        let line = Line::new(Arc::clone(&client.traffic), client.timeout, client.began);
        let config = Agent::config_builder().proxy(None).http_status_as_error(false).max_redirects(0);
        let config = config.max_redirects_will_error(false).user_agent("rlaunch").accept("");
        let config = config.timeout_connect(Some(client.timeout)).timeout_resolve(Some(client.timeout));
        let config =
            config.max_idle_connections(1).max_idle_connections_per_host(1).max_idle_age(Duration::MAX).build();
        let wires = Wires { line: Arc::clone(&line), tls: client.tls.clone() };
        let agent = Agent::with_parts(config, wires, DefaultResolver::default());
        Self { client: Arc::clone(client), line, agent }
    }

    /// Asks whoever answers, for as long as contact holds, or until the node has left.
    pub(super) fn call(&self, path: &str, question: &Value) -> Result<Value, Fault> {
        self.call_until(self.client.until(), path, question)
    }

    /// Asks whoever answers by then.
    pub(super) fn call_until(&self, until: Duration, path: &str, question: &Value) -> Result<Value, Fault> {
        self.first(until, |to| {
            let response = self.post(to, path, question)?;
            self.answer(to, response)
        })
    }

    /// A stream from whoever begins one.
    pub(super) fn stream(&self, path: &str, question: &Value) -> Result<Response<Body>, Fault> {
        self.line.streams.store(false, Ordering::Relaxed);
        // Nobody waits for it.
        self.first(Duration::MAX, |to| {
            self.line.endpoint.store(to.at, Ordering::Relaxed);
            let response = self.send(to, path, question, None)?;
            if response.status().is_success() { Ok(response) } else { Err(self.no(to, response)) }
        })
    }

    /// What the first endpoint that can answer says. The time is shared out among those that are left.
    fn first<T>(&self, until: Duration, ask: impl Fn(Try) -> Result<T, Fault>) -> Result<T, Fault> {
        let (count, first) = (self.client.endpoints.len(), self.client.preferred());
        let mut last = "no time is left to ask it".to_owned();
        for (step, waiting) in (1..=u32::try_from(count).unwrap_or(u32::MAX)).rev().enumerate() {
            let (at, now) = ((first + step) % count, self.client.now());
            let left = until.min(self.client.left_by()).saturating_sub(now);
            if left.is_zero() {
                // Those that were not asked come first the next time.
                self.client.preferred.store(at, Ordering::Relaxed);
                break;
            }
            let share = (left / waiting).max(LEAST).min(left).min(self.client.timeout);
            match self.with_token(Try { at, share, until: now + share }, &ask) {
                Err(_) if self.line.is_closed() => return Err(Fault::Closed),
                Err(Fault::Contact(why)) => last = why,
                Ok(answer) => {
                    self.client.prefer(at);
                    return Ok(answer);
                }
                Err(other) => return Err(other),
            }
        }
        Err(Fault::Contact(last))
    }

    /// Asks with a token where a user is given; with another where that is not valid any more.
    fn with_token<T>(&self, to: Try, ask: impl Fn(Try) -> Result<T, Fault>) -> Result<T, Fault> {
        if self.client.user.is_some() && self.token().is_none() {
            self.authenticate(to)?;
        }
        match ask(to) {
            Err(Fault::No { message, .. }) if is_stale(&message) => {
                self.authenticate(to)?;
                ask(to).map_err(|fault| self.meant(to.at, fault))
            }
            other => other.map_err(|fault| self.meant(to.at, fault)),
        }
    }

    fn token(&self) -> Option<String> {
        self.client.token.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn authenticate(&self, to: Try) -> Result<(), Fault> {
        let Some((name, password)) = &self.client.user else { return Ok(()) };
        let question = json!({ "name": name, "password": password });
        let response = self.post(to, "/v3/auth/authenticate", &question)?;
        let token = match self.answer(to, response) {
            Ok(answer) => answer["token"].as_str().map(str::to_owned),
            // Whoever asks nobody for a name lets everybody in.
            Err(Fault::No { message, .. }) if message.contains("authentication is not enabled") => Some(String::new()),
            Err(fault) => return Err(self.meant(to.at, fault)),
        };
        *self.client.token.lock().unwrap_or_else(PoisonError::into_inner) = token;
        Ok(())
    }

    /// A request; again at once where a connection that had been kept turns out to have gone.
    fn post(&self, to: Try, path: &str, question: &Value) -> Result<Response<Body>, Fault> {
        self.send(to, path, question, Some(to.until))
    }

    /// The same; the whole answer has to be there by then.
    fn send(&self, to: Try, path: &str, question: &Value, until: Option<Duration>) -> Result<Response<Body>, Fault> {
        let post = || {
            let url = format!("{}{path}", self.client.endpoints[to.at]);
            // Without a leader a member refuses a watch instead of keeping silent.
            let mut request = self.agent.post(url).header("Content-Type", "application/json");
            request = request.header("Grpc-Metadata-hasleader", "true");
            if let Some(token) = self.token().filter(|token| !token.is_empty()) {
                request = request.header("Authorization", token);
            }
            let limit = until.map(|until| until.saturating_sub(self.client.now()).max(Duration::from_millis(1)));
            request.config().timeout_global(limit).build().send(question.to_string())
        };
        let response = match post() {
            Err(ureq::Error::Io(error)) if has_gone(&error) && !self.line.is_closed() => post(),
            other => other,
        };
        response.map_err(|error| self.broken(to, &error))
    }

    fn answer(&self, to: Try, mut response: Response<Body>) -> Result<Value, Fault> {
        if !response.status().is_success() {
            return Err(self.no(to, response));
        }
        let text = response.body_mut().with_config().limit(LONGEST).read_to_vec();
        let text = text.map_err(|error| self.broken(to, &error))?;
        let answer = serde_json::from_slice::<Value>(&text).ok().filter(Value::is_object);
        answer.ok_or_else(|| self.stranger(to, "its answer is not JSON"))
    }

    /// What an answer means that is none.
    fn no(&self, to: Try, mut response: Response<Body>) -> Fault {
        let status = response.status();
        let text = response.body_mut().with_config().limit(1 << 16).read_to_vec().unwrap_or_default();
        let told = serde_json::from_slice::<Value>(&text).ok();
        let told = told.as_ref().and_then(|value| Some((value["code"].as_i64()?, value["error"].as_str()?)));
        match told {
            Some((_, "Not Found")) | None if status.is_client_error() => {
                self.stranger(to, &format!("it answers with HTTP status {}", status.as_u16()))
            }
            Some((code, message)) => Fault::No { code, message: message.to_owned() },
            None => Fault::Contact(format!("{}: HTTP status {}", self.client.endpoints[to.at], status.as_u16())),
        }
    }

    /// What etcd's refusal means.
    fn meant(&self, at: usize, fault: Fault) -> Fault {
        let Fault::No { code, message } = fault else { return fault };
        let endpoint = &self.client.endpoints[at];
        let refused = |way_out: &str| Fault::Refused(format!("etcd at {endpoint} says: {message}; {way_out}"));
        match code {
            _ if message.contains("user name is empty") => refused("name a user, and the password"),
            _ if message.contains("authentication failed") => refused("check the user's name and the password"),
            _ if message.contains("request is too large") || message.contains("message larger than max") => {
                refused("start etcd with a larger --max-request-bytes")
            }
            7 => refused("this user, or the certificate's, needs a role that may read and write this prefix"),
            16 => refused("check the user's name and the password"),
            // Too slow, too full, cut off from the others, without a leader.
            1 | 4 | 8 | 13 | 14 => Fault::Contact(format!("{endpoint}: {message}")),
            _ => Fault::No { code, message },
        }
    }

    fn broken(&self, to: Try, error: &ureq::Error) -> Fault {
        let endpoint = &self.client.endpoints[to.at];
        if self.line.is_closed() {
            return Fault::Closed;
        }
        if let ureq::Error::Io(error) = error
            && let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>())
            && let Some(reason) = tls::reason(tls)
        {
            return Fault::Refused(format!("etcd at {endpoint}: {reason}"));
        }
        let why = match error {
            ureq::Error::Timeout(_) => format!("no answer within {} s", (to.share.as_secs_f64() * 10.0).round() / 10.0),
            ureq::Error::Protocol(_) | ureq::Error::Http(_) => return self.stranger(to, "it does not speak HTTP"),
            ureq::Error::HostNotFound => "no such host".to_owned(),
            ureq::Error::Io(error) if has_gone(error) && !self.client.met.load(Ordering::Relaxed) => {
                let (wants, scheme) = if endpoint.starts_with("http:") { ("", "https") } else { (" no", "http") };
                format!("it hung up ({error}); if it wants{wants} TLS, write {scheme}://")
            }
            ureq::Error::Io(error) => error.to_string(),
            other => other.to_string(),
        };
        Fault::Contact(format!("{endpoint}: {why}"))
    }

    /// What answers there is not etcd, or a very old one. Where it has been etcd, something in between may say so.
    fn stranger(&self, to: Try, sign: &str) -> Fault {
        let endpoint = &self.client.endpoints[to.at];
        if self.client.met.load(Ordering::Relaxed) {
            return Fault::Contact(format!("{endpoint}: {sign}"));
        }
        let get = |path: &str| {
            let request = self.agent.get(format!("{endpoint}{path}")).config();
            request.timeout_global(Some(self.client.timeout)).build().call().ok()
        };
        let version = get("/version").and_then(|mut response| {
            let text = response.body_mut().with_config().limit(1 << 16).read_to_string().ok()?;
            Some(serde_json::from_str::<Value>(&text).ok()?["etcdserver"].as_str()?.to_owned())
        });
        let is_v2 = || get("/v2/keys/").is_some_and(|response| response.status().is_success());
        Fault::Refused(match version {
            Some(version) => format!(
                "etcd {version} at {endpoint} serves etcd's v2 API only, or an early v3; rlaunch speaks v3, from etcd 3.4 on"
            ),
            None if is_v2() => format!("{endpoint} serves etcd's v2 API only; rlaunch speaks v3, from etcd 3.4 on"),
            None => format!("{endpoint} is not etcd: {sign}; rlaunch speaks etcd's v3 API, from etcd 3.4 on"),
        })
    }

    /// The keys that begin with this, and the revision at which they were there.
    pub(super) fn range(&self, prefix: &str) -> Result<(Vec<words::Kv>, i64), Fault> {
        let answer = self.call("/v3/kv/range", &words::range(prefix))?;
        Ok((words::kvs(&answer), words::revision(&answer)))
    }
}

fn in_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn is_stale(message: &str) -> bool {
    message.contains("invalid auth token") || message.contains("revision of auth store is old")
}

/// Whether the other end has hung up.
fn has_gone(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    let tls = error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>());
    !tls && matches!(
        error.kind(),
        Kind::ConnectionReset | Kind::BrokenPipe | Kind::UnexpectedEof | Kind::ConnectionAborted
    )
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("etcd: {why}"))
}

/// An endpoint as a URL without a path.
fn endpoint(text: &str, wants_tls: bool) -> io::Result<String> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("etcd", text));
    let scheme = match (scheme, wants_tls) {
        ("etcd", false) | ("http", false) => "http",
        ("etcd", true) | ("https", _) => "https",
        ("http", true) => return Err(wrong(&format!("{text}: files for TLS are given; write https://"))),
        _ => return Err(wrong(&format!("{text}: it begins with etcd://, http:// or https://, or with the host"))),
    };
    let unfit = |why: &dyn Error| wrong(&format!("{text}: {why}; it is host:port"));
    let uri: Uri = format!("{scheme}://{}", rest.trim_end_matches('/')).parse().map_err(|error| unfit(&error))?;
    let authority = uri.authority().filter(|one| !one.host().is_empty() && !one.as_str().contains('@'));
    match authority {
        Some(one) if uri.path().len() <= 1 && uri.query().is_none() => {
            Ok(format!("{scheme}://{}:{}", one.host(), one.port_u16().unwrap_or(2379)))
        }
        _ => Err(wrong(&format!("{text}: it is host:port, without a path or a user"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_hosts_with_or_without_a_scheme_and_a_port() {
        let fit = |text, tls| endpoint(text, tls).map_err(|error| error.to_string());
        assert_eq!(fit("h:1", false).as_deref(), Ok("http://h:1"));
        assert_eq!(fit("etcd://h", true).as_deref(), Ok("https://h:2379"));
        assert_eq!(fit("https://[::1]:5/", false).as_deref(), Ok("https://[::1]:5"));
        for (text, tls) in
            [("http://h:1", true), ("ftp://h", false), ("", false), ("h:1/path", false), ("u@h:1", false)]
        {
            assert!(endpoint(text, tls).is_err(), "{text}");
        }
    }
}
