//! Releases the memory of program code that only the start needed.

use std::fs;
use std::io;
use std::ops::Range;

/// Removes the program's code from the memory of the process, and returns how many bytes were mapped. It
/// stays in the page cache, and code that runs is loaded again on access. A start touches nearly all of the
/// program (parsers, schemas, seeds: 25 MiB), serving a third of it.
///
/// # Errors `/proc` cannot be read, or the kernel rejects the call; nothing is lost then.
pub fn release_pages() -> io::Result<usize> {
    let program = fs::read_link("/proc/self/exe")?;
    let maps = fs::read_to_string("/proc/self/maps")?;
    let ours = maps.lines().filter(|line| program.to_str().is_some_and(|path| line.ends_with(path)));
    let mut bytes = 0;
    for code in ours.filter_map(code) {
        bytes += code.len();
        // SAFETY: the range is one mapping of our executable that is executable and not writable (`code`).
        // It was never written to: relocations are applied elsewhere, and its file cannot be opened for
        // writing while it is executed. So each page equals the file, and the next access sees the same
        // bytes again.
        let outcome = unsafe { libc::madvise(code.start as *mut libc::c_void, code.len(), libc::MADV_DONTNEED) };
        if outcome != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(bytes)
}

/// The addresses of a line of `/proc/PID/maps`, if it is code: `START-END r-xp …`.
fn code(line: &str) -> Option<Range<usize>> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let range = address(start)?..address(end)?;
    (rest.starts_with("r-xp ") && !range.is_empty()).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_mappings_are_released() {
        let line = |mode| format!("55d0-55f0 {mode} 00001000 fe:00 42                    /bin/program");
        assert_eq!(code(&line("r-xp")), Some(0x55d0..0x55f0));
        for other in ["r--p", "rw-p", "rwxp", "r-xs", "---p"] {
            assert_eq!(code(&line(other)), None, "{other}");
        }
        for broken in ["", "55d0 r-xp ", "55d0-zz r-xp ", "55f0-55d0 r-xp "] {
            assert_eq!(code(broken), None, "{broken}");
        }
    }

    #[test]
    fn released_code_still_runs() {
        for _ in 0..3 {
            assert!(release_pages().unwrap() > 100 << 10);
            assert_eq!(code("1-2 r-xp "), Some(1..2));
        }
    }
}
