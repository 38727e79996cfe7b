//! How far a pull is: a bar for each layer on a terminal, lines elsewhere.

use std::io::IsTerminal as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use images::Digest;
use images::progress::{Progress, ProgressEvent};

use super::size;

/// Between two frames of the progress bars.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);
const BAR_WIDTH: u64 = 30;
/// Of a digest, as `docker pull` shows it.
const SHORT_DIGEST_DIGITS: usize = 12;

#[derive(Debug)]
pub(super) struct ConsoleProgress {
    name: String,
    is_terminal: bool,
    state: Mutex<ProgressBars>,
}

#[derive(Debug, Default)]
struct ProgressBars {
    layers: Vec<LayerProgress>,
    /// Lines of the last frame, which the next one replaces.
    drawn: usize,
    drawn_at: Option<Instant>,
}

#[derive(Debug)]
struct LayerProgress {
    layer: Digest,
    bytes: u64,
    total: u64,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Downloading,
    Unpacking,
    Ready,
}

impl ConsoleProgress {
    pub(super) fn new(name: String) -> Self {
        Self { name, is_terminal: std::io::stderr().is_terminal(), state: Mutex::default() }
    }

    /// Draws the last frame.
    pub(super) fn finish(&self) {
        if self.is_terminal {
            draw(&mut self.lock());
        }
    }

    fn lock(&self) -> MutexGuard<'_, ProgressBars> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner) // only a frame
    }

    fn say(&self, state: &mut ProgressBars, line: &str) {
        complain!("{line}");
        // The bars go on below it.
        state.drawn = 0;
    }
}

impl Progress for ConsoleProgress {
    fn event(&self, event: &ProgressEvent) {
        let mut state = self.lock();
        match event {
            ProgressEvent::Started { layers, missing_layers, bytes } => {
                let line = format!("{}: {missing_layers} of {layers} layers to pull, {}", self.name, size(*bytes));
                self.say(&mut state, &line);
            }
            ProgressEvent::Retrying { why, .. } => self.say(&mut state, &format!("retrying: {why}")),
            ProgressEvent::Downloaded { layer, bytes, total } => {
                let entry = state.layer(layer);
                (entry.bytes, entry.total) = (*bytes, *total);
            }
            ProgressEvent::Unpacking { layer } => state.layer(layer).stage = Stage::Unpacking,
            ProgressEvent::LayerReady { layer } => {
                state.layer(layer).stage = Stage::Ready;
                if !self.is_terminal {
                    complain!("{}: ready", short(layer));
                }
            }
        }
        // Bytes come often; a new stage of a layer is shown at once.
        let is_due = !matches!(event, ProgressEvent::Downloaded { .. })
            || state.drawn_at.is_none_or(|at| at.elapsed() >= REDRAW_INTERVAL);
        if self.is_terminal && is_due {
            draw(&mut state);
        }
    }
}

impl ProgressBars {
    fn layer(&mut self, layer: &Digest) -> &mut LayerProgress {
        let at = self.layers.iter().position(|entry| entry.layer == *layer).unwrap_or_else(|| {
            let stage = Stage::Downloading;
            self.layers.push(LayerProgress { layer: layer.clone(), bytes: 0, total: 0, stage });
            self.layers.len() - 1
        });
        &mut self.layers[at]
    }
}

fn draw(state: &mut ProgressBars) {
    let mut frame = String::new();
    if state.drawn > 0 {
        frame.push_str(&format!("\x1b[{}A", state.drawn));
    }
    for layer in &state.layers {
        frame.push_str(&format!("\x1b[2K{}\n", bar(layer)));
    }
    complain!(part "{frame}");
    state.drawn = state.layers.len();
    state.drawn_at = Some(Instant::now());
}

fn bar(layer: &LayerProgress) -> String {
    let name = short(&layer.layer);
    match layer.stage {
        Stage::Ready => format!("{name} ready"),
        Stage::Unpacking => format!("{name} unpacking"),
        Stage::Downloading => {
            let full = (layer.bytes * BAR_WIDTH).checked_div(layer.total).unwrap_or(0).min(BAR_WIDTH);
            let (full, empty) = (usize::try_from(full).unwrap_or(0), usize::try_from(BAR_WIDTH - full).unwrap_or(0));
            let bar = format!("{}{}", "=".repeat(full), " ".repeat(empty));
            format!("{name} [{bar}] {} of {}", size(layer.bytes), size(layer.total))
        }
    }
}

fn short(layer: &Digest) -> &str {
    layer.hex().get(..SHORT_DIGEST_DIGITS).unwrap_or(layer.hex())
}
