//! The disk of the data folder: a 202 waits for one flush.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Check;

/// Flushes that are measured; the middle one counts, because a disk's first flush is often slow.
const FLUSHES: usize = 15;
/// A page: the smallest write of the log.
const BLOCK: [u8; 4096] = [0; 4096];
/// A flush of a data centre's SSD takes 0.05 to 1 ms, of a consumer's SSD up to 5 ms.
const SLOW_FLUSH: Duration = Duration::from_millis(5);
/// A disk with a volatile cache cannot flush in this time: the flush is ignored (tmpfs, eatmydata, some virtual disks).
const IMPLAUSIBLE_FLUSH: Duration = Duration::from_micros(4);

pub(super) fn check(data: &Path) -> Check {
    let folder = nearest(data);
    match median_flush(&folder) {
        Ok(median) => judge(&folder, median),
        Err(why) => Check::failed(
            "disk flush",
            format!("{}: {why}", folder.display()),
            "no event can be stored: choose another folder with --data, or make this one writable",
        ),
    }
}

/// The folder itself, or the nearest existing folder above it.
fn nearest(data: &Path) -> PathBuf {
    let absolute = std::path::absolute(data).unwrap_or_else(|_| data.to_owned());
    absolute.ancestors().find(|folder| folder.is_dir()).map_or(absolute.clone(), Path::to_owned)
}

/// Flushes a temporary file, which is removed.
fn median_flush(folder: &Path) -> io::Result<Duration> {
    let path = folder.join(format!(".sluicegate-doctor-{}", std::process::id()));
    let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
    let outcome = measure(&file);
    drop(fs::remove_file(&path));
    outcome
}

fn measure(mut file: &File) -> io::Result<Duration> {
    let mut times = Vec::with_capacity(FLUSHES);
    for _ in 0..FLUSHES {
        file.write_all(&BLOCK)?;
        let start = Instant::now();
        file.sync_data()?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times[FLUSHES / 2])
}

fn judge(folder: &Path, median: Duration) -> Check {
    let value = format!("{:.2} ms in {}", median.as_secs_f64() * 1e3, folder.display());
    if median >= SLOW_FLUSH {
        let advice = "each 202 waits for a flush: use a faster disk, or several senders at once, which share a flush";
        return Check::warning("disk flush", value, advice);
    }
    if median <= IMPLAUSIBLE_FLUSH {
        let advice =
            "flushes are not carried out (a file system in memory?): acknowledged events do not survive a power loss";
        return Check::warning("disk flush", value, advice);
    }
    Check::ok("disk flush", value)
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn slow_and_ignored_flushes_are_warnings() {
        let verdict = |micros| judge(Path::new("/data"), Duration::from_micros(micros)).verdict;
        assert_eq!(verdict(300), Verdict::Ok);
        assert_eq!(verdict(5_000), Verdict::Warning);
        assert_eq!(verdict(2), Verdict::Warning);
    }

    #[test]
    fn measurement_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        median_flush(folder.path()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_eq!(nearest(&folder.path().join("not/there")), folder.path());
    }

    #[test]
    fn folder_without_access_fails() {
        let check = check(Path::new("/proc/self/fd"));
        assert_eq!(check.verdict, Verdict::Failed, "{check:?}");
    }
}
