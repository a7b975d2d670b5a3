//! Space and kind of the file system of a folder.

use nix::sys::statfs::statfs;
use nix::sys::statvfs::{FsFlags, statvfs};
use std::io;
use std::path::Path;

/// The file system of a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskSpace {
    /// Its size in bytes; 0 if it has no limit of its own.
    pub total: u64,
    /// Bytes that can be written, without those that are reserved for the superuser.
    pub left: u64,
    /// Files that can be created; `None` if they are not counted.
    pub files_left: Option<u64>,
    /// Whether it is mounted read-only.
    pub is_read_only: bool,
    /// `ext4`, `nfs`; `None` for one that is not known here.
    pub kind: Option<&'static str>,
}

/// The numbers of file systems in statfs(2), and of some that are not in the kernel.
const KINDS: [(i64, &str); 19] = [
    (0xEF53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683E, "btrfs"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58F6, "ramfs"),
    (0x794C_7630, "overlay"),
    (0x7371_7368, "squashfs"),
    (0xF2F5_2010, "f2fs"),
    (0x2FC1_2FC1, "zfs"),
    (0x6969, "nfs"),
    (0xFF53_4D42, "cifs"),
    (0xFE53_4D42, "smb"),
    (0x6573_5546, "fuse"),
    (0x0102_1997, "9p"),
    (0x0BD0_0BD0, "lustre"),
    (0x4750_4653, "gpfs"),
    (0x00C3_6400, "ceph"),
    (0x1983_0326, "beegfs"),
    (0x5346_414F, "afs"),
];

/// The file system of a folder that exists. May hang on a server that is gone.
pub fn space(folder: &Path) -> io::Result<DiskSpace> {
    let found = statvfs(folder)?;
    // Without what is reserved for the superuser (statvfs(3)): a job of root is not to use it up either.
    let (blocks, files) = (found.blocks_available(), found.files_available());
    // The types of these fields differ between platforms.
    #[allow(clippy::useless_conversion, clippy::unnecessary_cast)]
    Ok(DiskSpace {
        total: u64::from(found.blocks()).saturating_mul(found.fragment_size() as u64),
        left: u64::from(blocks).saturating_mul(found.fragment_size() as u64),
        files_left: (found.files() > 0).then_some(u64::from(files)),
        is_read_only: found.flags().contains(FsFlags::ST_RDONLY),
        kind: statfs(folder).ok().and_then(|found| {
            let number = found.filesystem_type().0 as i64 & 0xFFFF_FFFF;
            KINDS.iter().find(|(known, _)| *known == number).map(|(_, name)| *name)
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_system_of_a_folder_is_known() {
        let found = space(Path::new("/proc")).unwrap();
        assert_eq!((found.kind, found.total), (None, 0));
        let found = space(&std::env::temp_dir()).unwrap();
        assert!(found.total >= found.left && !found.is_read_only, "{found:?}");
        assert!(space(Path::new("/nowhere")).is_err());
    }

    #[test]
    fn blocks_that_are_reserved_for_the_superuser_are_not_free() {
        let folder = std::env::temp_dir();
        let mut same = false;
        // Other processes write there too.
        for _ in 0..1000 {
            let (found, known) = (space(&folder).unwrap(), statvfs(&folder).unwrap());
            #[allow(clippy::unnecessary_cast, reason = "the types of statvfs(3) are shorter on 32-bit machines")]
            let (blocks, size) = (known.blocks_available() as u64, known.fragment_size() as u64);
            same |= found.left == blocks * size;
        }
        assert!(same);
    }
}
