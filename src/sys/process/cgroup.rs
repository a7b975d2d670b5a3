//! A cgroup for the ranks of a job, where one can be created. A process that starts in it stays in it, whatever happens to its
//! session, its parent and its environment. One write kills all members, also those that fork faster than their ids can be
//! read (Documentation/admin-guide/cgroup-v2.rst of Linux).

use crate::sys::clock;
use crate::sys::process::procfs::stat::ProcStat;
use crate::sys::process::{clone3, pidfd, procfs, tree};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, openat};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;
use nix::unistd::geteuid;
use std::ffi::CStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

const PREFIX: &str = "rlaunch-";

/// The attribute of a cgroup that names its owner. A name proves nothing: `rlaunch-nightly.service` may be a user's unit. A kernel with
/// cgroup.kill (Linux 5.14) has such attributes in cgroups (Linux 5.7).
const MARK: &CStr = c"user.rlaunch.owner";

/// A longer mark is none of a launcher's.
const MAX_MARK: usize = 256;

/// How often a cgroup is created that another launcher takes for an abandoned one.
const CREATE_TRIES: u32 = 5;

/// How long the members of an abandoned cgroup are waited for after they have been killed.
const ABANDONED_PATIENCE: Duration = Duration::from_millis(100);

/// The open folder of a cgroup. Its lock shows that the cgroup is in use.
pub type CgroupDir = Flock<File>;

/// The process that has created a cgroup: its mark.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CgroupOwner {
    /// The name of the cgroup.
    name: String,
    pid: i32,
    started: u64,
    /// The inode of its PID namespace, in which alone its number means something.
    namespace: u64,
    /// The boot of the machine (proc_sys_kernel(5), random/boot_id).
    boot: String,
}

impl CgroupOwner {
    /// This process, which owns the cgroup of this name. Fails where /proc is that of another PID namespace.
    fn this(name: &str) -> io::Result<Self> {
        procfs::verify().map_err(io::Error::other)?;
        let pid = std::process::id() as i32;
        let started = ProcStat::of(pid).ok_or(io::ErrorKind::NotFound)?.started;
        let namespace = fs::metadata("/proc/self/ns/pid")?.ino();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        Ok(Self { name: name.to_owned(), pid, started, namespace, boot })
    }

    fn text(&self) -> String {
        format!("{} {} {} {} {}", self.pid, self.started, self.namespace, self.boot, self.name)
    }

    fn parse(mark: &[u8]) -> Option<Self> {
        let mut fields = std::str::from_utf8(mark).ok()?.splitn(5, ' ');
        let (pid, started) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let (namespace, boot) = (fields.next()?.parse().ok()?, fields.next()?.to_owned());
        Some(Self { pid, started, namespace, boot, name: fields.next()?.to_owned() })
    }

    /// Whether this process can be sure that the owner has ended: it is of this boot and of the PID namespace of `this`.
    fn has_ended(&self, this: &Self) -> bool {
        let is_visible = self.boot == this.boot && self.namespace == this.namespace && self.pid > 0;
        is_visible
            && match ProcStat::of(self.pid) {
                Some(stat) => stat.started != self.started || stat.is_gone() && !tree::has_other_threads(self.pid),
                None => pidfd::is_unused(self.pid),
            }
    }
}

/// Writes the mark of a cgroup.
fn set_mark(folder: &File, mark: &str) -> io::Result<()> {
    // SAFETY: name and value are valid for the call, which only reads them.
    let rc = unsafe { libc::fsetxattr(folder.as_raw_fd(), MARK.as_ptr(), mark.as_ptr().cast(), mark.len(), 0) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The mark of a cgroup of this user, if it has one.
fn read_mark(folder: &File) -> Option<CgroupOwner> {
    let mut bytes = [0; MAX_MARK];
    // SAFETY: `bytes` is as long as stated, and the name is valid for the call.
    let length = unsafe { libc::fgetxattr(folder.as_raw_fd(), MARK.as_ptr(), bytes.as_mut_ptr().cast(), bytes.len()) };
    let is_own = folder.metadata().is_ok_and(|found| found.uid() == geteuid().as_raw());
    CgroupOwner::parse(bytes.get(..usize::try_from(length).ok()?)?).filter(|_| is_own)
}

fn lock(path: &Path, how: FlockArg) -> io::Result<CgroupDir> {
    Flock::lock(File::open(path)?, how).map_err(|(_, errno)| errno.into())
}

/// A cgroup v2 below the cgroup of this process.
#[derive(Clone, Debug)]
pub struct JobCgroup {
    path: PathBuf,
}

impl JobCgroup {
    /// Finds the path of the cgroup `rlaunch-KEY`, if there can be one. Does not create it.
    pub fn find(key: &str) -> Option<Self> {
        let text = |path| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let own = text("/proc/self/cgroup").ok()?;
        let mounts = text("/proc/self/mountinfo").ok()?;
        // Another file system may be mounted over the cgroups.
        let own = own_folders(&own, &mounts).into_iter().find(|own| own.join("cgroup.procs").exists())?;
        Some(Self { path: own.join(format!("{PREFIX}{key}")) })
    }

    /// Creates it and opens its folder, in which processes can then be started. The cgroup is in use while the folder is open.
    /// Fails without cgroup.kill (Linux 5.14), and if no process can be started in it.
    pub fn create(&self) -> io::Result<CgroupDir> {
        self.end_abandoned();
        // Another launcher may see it before it is locked, and remove it.
        let taken = |error: &io::Error| matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotFound);
        let mut created = self.create_once();
        for _ in 1..CREATE_TRIES {
            if !created.as_ref().is_err_and(taken) {
                break;
            }
            created = self.create_once();
        }
        created
    }

    fn create_once(&self) -> io::Result<CgroupDir> {
        fs::create_dir(&self.path)?;
        let kill = OpenOptions::new().write(true).open(self.path.join("cgroup.kill"));
        let locked = kill.and_then(|_| lock(&self.path, FlockArg::LockSharedNonblock));
        // Without a mark it stays if both processes of this launcher are killed at once.
        if let (Ok(folder), Ok(owner)) = (&locked, CgroupOwner::this(&self.name())) {
            let _ = set_mark(folder, &owner.text());
        }
        let usable = locked.and_then(|folder| match clone3::takes_processes(folder.as_fd()) {
            true => Ok(folder),
            false => Err(io::ErrorKind::Unsupported.into()),
        });
        if usable.is_err() {
            let _ = fs::remove_dir(&self.path);
        }
        usable
    }

    /// Removes it and creates it again under the same name. A cgroup that was killed once cannot be used again: Linux (seen on
    /// 6.18) kills a process that clone3 starts in a cgroup whose kill count differs from its parent's.
    pub fn renew(&self, patience: Duration) -> io::Result<CgroupDir> {
        self.remove(clock::now().saturating_add(patience))?;
        self.create()
    }

    /// Kills and removes cgroups of earlier jobs beside it. They remain when both processes of a launcher are killed at once. Touches
    /// only those whose mark names a process of this PID namespace that has ended, and that no process holds locked.
    fn end_abandoned(&self) {
        let Ok(this) = CgroupOwner::this(&self.name()) else { return };
        let beside = self.path.parent().and_then(|own| fs::read_dir(own).ok()).into_iter().flatten().flatten();
        let groups = beside.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()));
        for entry in groups {
            let is_abandoned =
                |owner: CgroupOwner| entry.file_name().to_str() == Some(&owner.name) && owner.has_ended(&this);
            let Ok(folder) = File::open(entry.path()) else { continue };
            if read_mark(&folder).is_some_and(is_abandoned)
                && let Ok(folder) = Flock::lock(folder, FlockArg::LockExclusiveNonblock)
            {
                // A member that the kernel holds stays; the next launcher tries again.
                let _ = Self { path: entry.path() }.end_locked(&folder, ABANDONED_PATIENCE);
            }
        }
    }

    fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Kills the members of the cgroup whose folder is locked, and removes it. Its owner may have removed it before it was
    /// locked and created another one of this name, with processes that live: those are left alone. The exclusive lock keeps
    /// launchers from starting processes in the locked one.
    pub fn end_locked(&self, folder: &CgroupDir, patience: Duration) -> io::Result<()> {
        let open = |name: &str, flags| openat(&**folder, name, flags | OFlag::O_CLOEXEC, Mode::empty()).map(File::from);
        open("cgroup.kill", OFlag::O_WRONLY)?.write_all(b"1")?;
        await_empty(open("cgroup.events", OFlag::O_RDONLY)?, clock::now().saturating_add(patience))?;
        if is_same(&fs::metadata(&self.path)?, &folder.metadata()?) { self.remove_tree() } else { Ok(()) }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Kills all processes in it and below it, also those that are being forked.
    pub fn kill(&self) -> io::Result<()> {
        OpenOptions::new().write(true).open(self.path.join("cgroup.kill"))?.write_all(b"1")
    }

    /// Whether a process is in it or below it. Zombies do not count.
    pub fn is_populated(&self) -> bool {
        fs::read_to_string(self.path.join("cgroup.events")).is_ok_and(|text| populated(&text))
    }

    /// The process ids in it and below it that are visible in the pid namespace of this process.
    pub fn members(&self) -> Vec<i32> {
        let lists = self.tree().into_iter().filter_map(|folder| fs::read_to_string(folder.join("cgroup.procs")).ok());
        // Processes outside this pid namespace are listed as 0.
        let pids = |list: String| list.lines().filter_map(|pid| pid.parse().ok()).filter(|pid| *pid > 0).collect();
        lists.flat_map::<Vec<i32>, _>(pids).collect()
    }

    /// Moves a member to the cgroup of this process, above this one. Whether it is there, or has ended.
    pub fn release(&self, pid: i32) -> bool {
        let above = self.path.parent().map(|above| OpenOptions::new().write(true).open(above.join("cgroup.procs")));
        let moved =
            above.is_some_and(|procs| procs.is_ok_and(|mut procs| procs.write_all(pid.to_string().as_bytes()).is_ok()));
        moved || pidfd::is_unused(pid)
    }

    /// Kills the remaining members and removes the cgroup once it is empty, within `patience`. Whether it was removed.
    pub fn close(&self, patience: Duration) -> bool {
        // If this fails, the members are still waited for.
        let _ = self.kill();
        self.remove(clock::now().saturating_add(patience)).is_ok()
    }

    fn remove(&self, until: Duration) -> io::Result<()> {
        match self.remove_tree() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            done => return done,
        }
        await_empty(File::open(self.path.join("cgroup.events"))?, until)?;
        self.remove_tree()
    }

    /// Removes it and the cgroups below it, deepest first. A missing cgroup is no error.
    fn remove_tree(&self) -> io::Result<()> {
        match fs::remove_dir(&self.path) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            done => return done,
        }
        self.tree().iter().rev().try_for_each(fs::remove_dir)
    }

    /// Its folder and all folders below it, parents first.
    fn tree(&self) -> Vec<PathBuf> {
        let mut found = vec![self.path.clone()];
        let mut next = 0;
        while let Some(folder) = found.get(next) {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            let below: Vec<PathBuf> = folders.map(|entry| entry.path()).collect();
            found.extend(below);
            next += 1;
        }
        found
    }
}

/// Waits until a cgroup has no members. `events`: its cgroup.events.
fn await_empty(mut events: File, until: Duration) -> io::Result<()> {
    loop {
        // poll reports changes since the last read, so no change is missed in between.
        let mut text = String::new();
        events.rewind()?;
        events.read_to_string(&mut text)?;
        if !populated(&text) {
            return Ok(());
        }
        let left = until.saturating_sub(clock::now()).as_millis().min(i32::MAX as u128) as i32;
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        match poll(&mut [PollFd::new(events.as_fd(), PollFlags::POLLPRI)], timeout) {
            Ok(0) => return Err(Errno::EBUSY.into()),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

fn populated(events: &str) -> bool {
    events.lines().any(|line| line == "populated 1")
}

/// The folders of this process's cgroup v2, latest mount first. `own`: /proc/self/cgroup; `mounts`: /proc/self/mountinfo. Both
/// are relative to the root of this process's cgroup namespace (cgroup_namespaces(7)), so they can be compared.
fn own_folders(own: &str, mounts: &str) -> Vec<PathBuf> {
    let Some(own) = own.lines().find_map(|line| line.strip_prefix("0::")) else { return Vec::new() };
    let folder = |line: &str| {
        // A dash ends the optional fields, whose number varies (proc_pid_mountinfo(5)).
        let (head, tail) = line.split_once(" - ")?;
        let mut fields = head.split(' ').skip(3);
        let (root, at) = (unescaped(fields.next()?), unescaped(fields.next()?));
        let below = Path::new(own).strip_prefix(root).ok()?;
        let inside = below.components().all(|part| matches!(part, Component::Normal(_)));
        (inside && tail.split(' ').next() == Some("cgroup2")).then(|| Path::new(&at).join(below))
    };
    mounts.lines().rev().filter_map(folder).collect()
}

/// Decodes the octal escapes of mountinfo: blank, tab, newline and backslash.
fn unescaped(field: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(field.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:11 - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    fn places(own: &str, mounts: &str) -> Vec<String> {
        own_folders(own, mounts).iter().map(|path| path.components().as_path().display().to_string()).collect()
    }

    #[test]
    fn the_cgroup_is_found_in_its_mount() {
        let unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 master:1 - cgroup2 cgroup2 rw,nsdelegate\n";
        let scope = "/user.slice/user-1000.slice/user@1000.service/app.slice/run-r1.scope";
        assert_eq!(places(&format!("0::{scope}\n"), unified), [format!("/sys/fs/cgroup{scope}")]);
        let own = "9:name=systemd:/init.scope\n4:memory:/a\n0::/init.scope\n";
        assert_eq!(places(own, HYBRID), ["/sys/fs/cgroup/unified/init.scope"]);
    }

    #[test]
    fn a_container_sees_its_cgroup_at_the_root_of_the_mount() {
        let own_namespace = "612 611 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw,nsdelegate\n";
        assert_eq!(places("0::/\n", own_namespace), ["/sys/fs/cgroup"]);
        let host_namespace = "612 611 0:26 /docker/4f1c /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        assert_eq!(places("0::/docker/4f1c/job\n", host_namespace), ["/sys/fs/cgroup/job"]);
        assert!(places("0::/docker/4f1cd\n", host_namespace).is_empty(), "only a prefix is equal");
    }

    #[test]
    fn cgroups_outside_the_namespace_are_ignored() {
        let of_the_host = "30 23 0:26 /../.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert!(places("0::/\n", of_the_host).is_empty());
        assert!(places("0::/../other\n", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n").is_empty());
    }

    #[test]
    fn without_cgroup_v2_there_is_none() {
        assert!(places("4:memory:/a\n1:name=systemd:/\n", HYBRID).is_empty());
        let v1 = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        assert!(places("4:memory:/\n0::/\n", v1).is_empty());
        assert!(places("", "").is_empty());
        assert!(places("0::/\n", "30\n30 23 0:26 - cgroup2\n").is_empty(), "truncated lines");
    }

    #[test]
    fn the_latest_mount_comes_first_and_escapes_are_decoded() {
        let two = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 none rw\n44 23 0:26 / /mnt/my\\040groups\\134x rw - cgroup2 none rw\n";
        assert_eq!(places("0::/a b\n", two), ["/mnt/my groups\\x/a b", "/sys/fs/cgroup/a b"]);
    }

    #[test]
    fn an_owner_has_ended_only_if_that_is_certain() -> io::Result<()> {
        let this = CgroupOwner::this("rlaunch-a b")?;
        assert_eq!(CgroupOwner::parse(this.text().as_bytes()), Some(this.clone()));
        let earlier = CgroupOwner { started: this.started.wrapping_sub(1), ..this.clone() };
        let ended = CgroupOwner { pid: i32::MAX, ..this.clone() };
        assert_eq!([&this, &earlier, &ended].map(|owner| owner.has_ended(&this)), [false, true, true]);
        for other in [
            CgroupOwner { namespace: 1, ..ended.clone() },
            CgroupOwner { boot: "another".into(), ..ended.clone() },
            CgroupOwner { pid: 0, ..ended },
        ] {
            assert!(!other.has_ended(&this), "{other:?}");
        }
        for odd in [&b""[..], b"1", b"1 2 3 boot", b"x 2 3 boot name", b"\xff 2 3 boot name"] {
            assert_eq!(CgroupOwner::parse(odd), None);
        }
        Ok(())
    }

    #[test]
    fn populated_is_read_from_events() {
        assert!(populated("populated 1\nfrozen 0\n"));
        assert!(!populated("populated 0\nfrozen 1\n"));
        assert!(!populated(""));
    }
}
