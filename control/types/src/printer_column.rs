//! Columns of `kubectl get`.

/// Format of a column that counts: how many of the found are true, of how many.
pub const RATIO: &str = "ratio";

/// Format of a column that counts the entries of what is found.
pub const COUNT: &str = "count";
/// ... that shows a moment as it is.
pub const STAMP: &str = "stamp";
/// ... that shows what two paths (with `+` between) find, as `one/other`; and the same with the first in lower
/// case.
pub const PAIR: &str = "pair";
pub const LOWER_PAIR: &str = "lower-pair";
/// ... that shows a map as `key=value,...`.
pub const LABELS: &str = "labels";
/// ... that shows the first few of what is found, and how many more there are.
pub const FIRST_FEW: &str = "some";
/// ... that shows the first few addresses with ports of subsets of Endpoints.
pub const ENDPOINTS: &str = "endpoints";
/// ... that shows a Service's ports, and by which addresses those outside reach it.
pub const SERVICE_PORTS: &str = "service-ports";
pub const SERVICE_EXTERNAL_ADDRESSES: &str = "service-outside";

/// ... that shows the modes of a claim in their short forms.
pub const ACCESS_MODES: &str = "access-modes";

/// A column of `kubectl get`, after Name; a kind that has a column Name of its own shows it where that is.
#[derive(Debug, Clone, Copy)]
pub struct PrinterColumn {
    pub name: &'static str,
    /// JSONPath as in a CRD's `additionalPrinterColumns`; of several with `|` between, the first that finds
    /// something. One that starts with `=` is what to show then.
    pub path: &'static str,
    /// `string`, `integer`, `date` or one of the constants above, which only Kubernetes' own kinds use.
    pub format: &'static str,
    /// 0 = always shown, 1 = only with `-o wide`.
    pub priority: i32,
    /// A column of a custom kind: the path is only a path, and its value is printed as the type that `format` names.
    pub custom: Option<CustomColumn>,
}

/// Further properties of a column in a definition.
#[derive(Debug, Clone, Copy)]
pub struct CustomColumn {
    pub description: &'static str,
    pub format: &'static str,
}

/// The two columns that every kind with conditions has.
pub const READY: PrinterColumn = PrinterColumn {
    name: "Ready",
    path: ".status.conditions[?(@.type==\"Ready\")].status",
    format: "string",
    priority: 0,
    custom: None,
};
pub const REASON: PrinterColumn = PrinterColumn {
    name: "Reason",
    path: ".status.conditions[?(@.type==\"Ready\")].reason",
    format: "string",
    priority: 0,
    custom: None,
};

pub const fn column(name: &'static str, path: &'static str) -> PrinterColumn {
    PrinterColumn { name, path, format: "string", priority: 0, custom: None }
}

pub const AGE: PrinterColumn =
    PrinterColumn { name: "Age", path: ".metadata.creationTimestamp", format: "date", priority: 0, custom: None };

pub(crate) const CREATED_AT: PrinterColumn =
    PrinterColumn { name: "Created At", path: ".metadata.creationTimestamp", format: STAMP, priority: 0, custom: None };
