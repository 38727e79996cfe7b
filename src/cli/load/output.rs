//! Where a report goes, and in which format.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context as _;
use load::{Report, report};

use crate::cli::tell;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReportFormat {
    Text,
    Json,
    Csv,
    Html,
}

impl ReportFormat {
    fn render(self, report: &Report) -> String {
        match self {
            Self::Text => report::to_text(report),
            Self::Json => format!("{:#}\n", report::to_json(report)),
            Self::Csv => report::to_csv(report),
            Self::Html => report::to_html(report),
        }
    }
}

/// `FORMAT[:FILE]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReportOutput {
    format: ReportFormat,
    /// `None`: stdout.
    file: Option<PathBuf>,
}

impl FromStr for ReportOutput {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (format, file) = text.split_once(':').map_or((text, None), |(format, file)| (format, Some(file)));
        let format = match format {
            "text" => ReportFormat::Text,
            "json" => ReportFormat::Json,
            "csv" => ReportFormat::Csv,
            "html" => ReportFormat::Html,
            other => return Err(format!("{other:?} is not text, json, csv or html")),
        };
        if file == Some("") {
            return Err("the file is missing after the colon".to_owned());
        }
        Ok(Self { format, file: file.map(PathBuf::from) })
    }
}

/// A format with its open file.
pub(super) struct ReportWriter {
    format: ReportFormat,
    file: Option<ReportFile>,
}

impl ReportWriter {
    /// Text on stdout.
    pub(super) fn text() -> Self {
        Self { format: ReportFormat::Text, file: None }
    }

    pub(super) fn open(output: &ReportOutput) -> anyhow::Result<Self> {
        let file = output.file.as_deref().map(ReportFile::open).transpose()?;
        Ok(Self { format: output.format, file })
    }

    pub(super) fn write(self, report: &Report) -> anyhow::Result<()> {
        let text = self.format.render(report);
        match self.file {
            None => tell(&text),
            Some(file) => file.write(&text),
        }
    }
}

/// The file of a report, opened before the test. A test that fails leaves no file, or the one that was there.
struct ReportFile {
    path: PathBuf,
    file: File,
    /// It was not there before, and has no report yet.
    is_new: bool,
}

impl ReportFile {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let create = || match File::create_new(path) {
            Ok(file) => Ok((file, true)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                File::options().write(true).open(path).map(|file| (file, false))
            }
            Err(error) => Err(error),
        };
        let (file, is_new) = create().with_context(|| format!("write the report to {}", path.display()))?;
        Ok(Self { path: path.to_owned(), file, is_new })
    }

    fn write(mut self, text: &str) -> anyhow::Result<()> {
        // Pipes and terminals have no length that could be set.
        if self.file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            self.file.set_len(0).with_context(|| format!("empty {}", self.path.display()))?;
        }
        self.is_new = false;
        self.file.write_all(text.as_bytes()).with_context(|| format!("write the report to {}", self.path.display()))
    }
}

impl Drop for ReportFile {
    fn drop(&mut self) {
        if self.is_new {
            // The error that ended the test is the one to report.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_format_with_optional_file() {
        let json = ReportOutput { format: ReportFormat::Json, file: None };
        assert_eq!("json".parse(), Ok(json));
        let html = ReportOutput { format: ReportFormat::Html, file: Some("a:b.html".into()) };
        assert_eq!("html:a:b.html".parse(), Ok(html));
        for bad in ["", "pdf", "html:", ":a"] {
            assert!(bad.parse::<ReportOutput>().is_err(), "{bad:?}");
        }
    }
    #[test]
    fn test_that_fails_leaves_no_file_and_keeps_an_old_report() {
        let folder = tempfile::tempdir().unwrap();
        let (new, old) = (folder.path().join("new.json"), folder.path().join("old.json"));
        std::fs::write(&old, "a longer report of yesterday").unwrap();
        for path in [&new, &old] {
            drop(ReportFile::open(path).unwrap());
        }
        assert!(!new.exists());
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "a longer report of yesterday");
        for path in [&new, &old] {
            ReportFile::open(path).unwrap().write("{}").unwrap();
            assert_eq!(std::fs::read_to_string(path).unwrap(), "{}");
        }
    }
}
