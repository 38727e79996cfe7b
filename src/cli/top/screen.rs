//! The terminal that tables are drawn on, or the pipe that they are written to.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::cli::tell;

/// The alternate screen, without a cursor: what was on the terminal comes back at the end.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// To the first line; each line then clears its own rest, and the last one all below. Nothing flickers.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K\n";
const CLEAR_BELOW: &str = "\x1b[J";
/// How soon an interrupt ends the program.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Rows of a terminal that does not say how many it has.
const ROWS_USUAL: u16 = 24;

pub(super) struct Screen {
    is_terminal: bool,
    interrupted: Arc<AtomicBool>,
}

impl Screen {
    pub(super) fn open() -> Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&interrupted)).context("signals cannot be received")?;
        }
        let is_terminal = std::io::stdout().is_terminal();
        if is_terminal {
            tell(ENTER)?;
        }
        Ok(Self { is_terminal, interrupted })
    }

    /// How many lines a frame may have; `None` for a pipe.
    pub(super) fn lines(&self) -> Option<usize> {
        let rows = || rustix::termios::tcgetwinsize(std::io::stdout()).map_or(0, |size| size.ws_row);
        self.is_terminal.then(|| match rows() {
            0 => ROWS_USUAL.into(),
            rows => rows.into(),
        })
    }

    /// `false`: the user has interrupted it.
    #[expect(clippy::disallowed_methods, reason = "a command line tool has nothing else to do")]
    pub(super) fn wait(&self, interval: Duration) -> bool {
        let began = Instant::now();
        while began.elapsed() < interval {
            if self.interrupted.load(Relaxed) {
                return false;
            }
            std::thread::sleep(POLL_INTERVAL.min(interval));
        }
        !self.interrupted.load(Relaxed)
    }

    pub(super) fn draw(&mut self, frame: &str) -> Result<()> {
        if !self.is_terminal {
            return tell(&format!("{frame}\n"));
        }
        tell(&format!("{HOME}{}{CLEAR_BELOW}", frame.replace('\n', CLEAR_LINE)))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.is_terminal {
            drop(tell(LEAVE));
        }
    }
}
