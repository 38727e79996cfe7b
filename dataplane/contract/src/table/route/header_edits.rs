//! Changes to the heads of requests and responses.

use codec::http::FieldName;

use super::path_rewrite::PathRewrite;
use super::request::{RouteRequest, TAG};
use crate::request_histograms::RouteTag;

/// The header that tells an instance that a request came without a tag.
const DEFAULT_ROUTE: &str = "Knative-Serving-Default-Route";

/// Changes to the fields of a head: a later change of a field counts after the earlier ones. None of them frames a message or
/// belongs to one hop.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeaderChanges {
    list: Vec<HeaderChange>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum HeaderChange {
    /// Replaces the fields of that name.
    Set(Box<str>, Box<str>),
    /// One more field.
    Add(Box<str>, Box<str>),
    Remove(Box<str>),
}

/// Changes to a request's head on the way to its instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeaderEdits {
    host: Option<Box<str>>,
    /// Boxed: every share of a rule has room for one.
    path: Option<Box<PathRewrite>>,
    fields: HeaderChanges,
    /// The tag that they announce to the instance.
    tag: RouteTag,
}

/// Why a header may not be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderEditError {
    #[error("is not a header name")]
    Name,
    #[error("contains bytes that are invalid in a header value")]
    Value,
    #[error("is a header that the proxy writes itself")]
    Own,
    #[error("is not a host")]
    Host,
}

impl HeaderChanges {
    /// Sets a field, replacing those of its name.
    ///
    /// # Errors
    ///
    /// Not a valid field, or one that frames the message or belongs to this hop.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), HeaderEditError> {
        check(name, value)?;
        self.forget(name);
        self.list.push(HeaderChange::Set(name.into(), value.into()));
        Ok(())
    }

    /// Adds a field to those of its name.
    ///
    /// # Errors
    ///
    /// As for [`HeaderChanges::set`].
    pub fn add(&mut self, name: &str, value: &str) -> Result<(), HeaderEditError> {
        check(name, value)?;
        self.list.push(HeaderChange::Add(name.into(), value.into()));
        Ok(())
    }

    /// Removes the fields of a name.
    ///
    /// # Errors
    ///
    /// As for [`HeaderChanges::set`].
    pub fn remove(&mut self, name: &str) -> Result<(), HeaderEditError> {
        check(name, "")?;
        self.forget(name);
        self.list.push(HeaderChange::Remove(name.into()));
        Ok(())
    }

    /// Adds the changes of `later` after these.
    pub fn append(&mut self, later: &Self) {
        for change in &later.list {
            if !matches!(change, HeaderChange::Add(..)) {
                self.forget(change.name());
            }
            self.list.push(change.clone());
        }
    }

    fn forget(&mut self, name: &str) {
        self.list.retain(|known| !known.name().eq_ignore_ascii_case(name));
    }

    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The fields that are written, in order.
    pub fn written(&self) -> impl Iterator<Item = (&str, &str)> {
        self.list.iter().filter_map(|change| match change {
            HeaderChange::Set(name, value) | HeaderChange::Add(name, value) => Some((&**name, &**value)),
            HeaderChange::Remove(_) => None,
        })
    }

    /// The names whose fields are dropped from the head.
    pub fn dropped(&self) -> impl Iterator<Item = &str> {
        self.list.iter().filter(|change| change.drops()).map(HeaderChange::name)
    }

    /// Whether fields of that name are dropped from the head, also with `_` for `-`: CGI and WSGI programs see `X_User` and
    /// `X-User` as one variable, so that a client could say what only the gateway may.
    #[inline]
    #[must_use]
    pub fn drops(&self, name: &[u8]) -> bool {
        self.list.iter().any(|change| change.drops() && is_same_variable(change.name().as_bytes(), name))
    }
}

fn is_same_variable(one: &[u8], other: &[u8]) -> bool {
    let letter = |byte: &u8| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    one.len() == other.len() && one.iter().map(letter).eq(other.iter().map(letter))
}

impl HeaderChange {
    fn name(&self) -> &str {
        let (Self::Set(name, _) | Self::Add(name, _) | Self::Remove(name)) = self;
        name
    }

    fn drops(&self) -> bool {
        matches!(self, Self::Set(..) | Self::Remove(_))
    }
}

/// Checks a field that control wants to write.
fn check(name: &str, value: &str) -> Result<(), HeaderEditError> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(token) {
        return Err(HeaderEditError::Name);
    }
    if value.bytes().any(|byte| byte != b'\t' && (byte < b' ' || byte == 0x7f)) || value.trim() != value {
        return Err(HeaderEditError::Value);
    }
    let is_free = matches!(
        FieldName::of(name.as_bytes()),
        FieldName::Other
            | FieldName::ForwardedOther
            | FieldName::Date
            | FieldName::MaxForwards
            | FieldName::Internal
            | FieldName::NetworkProbe
            | FieldName::NetworkHash
            | FieldName::Platform
    );
    if is_free { Ok(()) } else { Err(HeaderEditError::Own) }
}

/// Checks a host that control wants to write.
pub(super) fn check_host(host: &str) -> Result<(), HeaderEditError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    if !host.is_empty() && host.bytes().all(fits) { Ok(()) } else { Err(HeaderEditError::Host) }
}

impl HeaderEdits {
    /// Sets the Host that the instance gets.
    ///
    /// # Errors
    ///
    /// It is not a host.
    pub fn set_host(&mut self, host: &str) -> Result<(), HeaderEditError> {
        check_host(host)?;
        self.host = Some(host.into());
        Ok(())
    }

    /// Sets the path that the instance gets.
    pub fn set_path(&mut self, path: PathRewrite) {
        self.path = Some(Box::new(path));
    }

    /// Sets a header for the instance, replacing those that the client sent under its name.
    ///
    /// # Errors
    ///
    /// Not a valid header, or one that frames the message or belongs to this hop.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), HeaderEditError> {
        self.fields.set(name, value)?;
        if name.eq_ignore_ascii_case(TAG) {
            self.tag = RouteTag::Named(value.into());
        } else if name.eq_ignore_ascii_case(DEFAULT_ROUTE) {
            self.tag = RouteTag::Default;
        }
        Ok(())
    }

    /// Adds a header for the instance to those that the client sent under its name.
    ///
    /// # Errors
    ///
    /// As for [`HeaderEdits::set`].
    pub fn add(&mut self, name: &str, value: &str) -> Result<(), HeaderEditError> {
        self.fields.add(name, value)
    }

    /// Removes the headers that the client sent under a name.
    ///
    /// # Errors
    ///
    /// As for [`HeaderEdits::set`].
    pub fn remove(&mut self, name: &str) -> Result<(), HeaderEditError> {
        self.fields.remove(name)
    }

    /// Adds the edits of `later` after these.
    pub fn append(&mut self, later: &Self) {
        self.fields.append(&later.fields);
        self.host = later.host.clone().or(self.host.take());
        self.path = later.path.clone().or(self.path.take());
        if later.tag != RouteTag::Off {
            self.tag = later.tag.clone();
        }
    }

    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.host.is_none() && self.path.is_none() && self.fields.is_empty()
    }

    #[inline]
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    #[inline]
    #[must_use]
    pub fn path(&self) -> Option<&PathRewrite> {
        self.path.as_deref()
    }

    /// Whether the written head does not show what the client asked for.
    #[must_use]
    pub fn hides_target(&self) -> bool {
        self.host.is_some() || self.path.is_some()
    }

    /// The tag of a request with these edits (X-QP-12).
    #[inline]
    #[must_use]
    pub fn tag(&self, request: &RouteRequest<'_>) -> RouteTag {
        match &self.tag {
            RouteTag::Default if request.requested_tag() => RouteTag::Undefined,
            tag => tag.clone(),
        }
    }

    /// The headers that are written, in order.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields.written()
    }

    /// Whether a client's header of that name is removed.
    #[inline]
    #[must_use]
    pub fn replaces(&self, name: &[u8]) -> bool {
        self.fields.drops(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_address::ClientAddress;
    use codec::http::{Parsed, RequestHead, parse_request};

    #[test]
    fn header_edit_that_breaks_the_message_is_rejected() {
        let mut edits = HeaderEdits::default();
        for (name, value, why) in [
            ("", "x", HeaderEditError::Name),
            ("a b", "x", HeaderEditError::Name),
            ("a:", "x", HeaderEditError::Name),
            ("X", "a\r\nb: c", HeaderEditError::Value),
            ("X", " a", HeaderEditError::Value),
            ("Content-Length", "1", HeaderEditError::Own),
            ("transfer-encoding", "chunked", HeaderEditError::Own),
            ("Host", "a", HeaderEditError::Own),
        ] {
            assert_eq!(edits.set(name, value), Err(why), "{name}: {value}");
        }
        assert_eq!(edits.set_host("a b"), Err(HeaderEditError::Host));
        assert!(edits.is_empty());
        edits.set("X-One", "1").unwrap();
        edits.set("x-one", "2").unwrap();
        assert_eq!(edits.headers().collect::<Vec<_>>(), [("x-one", "2")]);
        assert!(edits.replaces(b"X-ONE") && !edits.replaces(b"X-On"));
    }

    /// X-QP-12: default, undefined and named tags. Where neither header is set, tags are off, whatever the client
    /// sends.
    #[test]
    fn request_tag_is_the_one_announced_to_the_instance() {
        let edits = |name: &str, value: &str| {
            let mut edits = HeaderEdits::default();
            edits.set(name, value).unwrap();
            edits
        };
        let (default, named) = (edits("knative-serving-default-route", "true"), edits(TAG, "next"));
        for (fields, edits, tag) in [
            ("", &default, RouteTag::Default),
            ("Knative-Serving-Tag:\r\n", &default, RouteTag::Default),
            ("knative-serving-tag: nobody\r\n", &default, RouteTag::Undefined),
            ("", &named, RouteTag::Named("next".into())),
            ("Knative-Serving-Tag: next\r\n", &named, RouteTag::Named("next".into())),
            ("Knative-Serving-Tag: next\r\n", &HeaderEdits::default(), RouteTag::Off),
        ] {
            let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
            let mut head = RequestHead::default();
            assert!(matches!(parse_request(text.as_bytes(), &mut head), Parsed::Head { .. }), "{text}");
            let peer = ClientAddress::new(([127, 0, 0, 1], 1).into(), crate::client_address::ClientScheme::Http);
            assert_eq!(edits.tag(&RouteRequest::client(head.view(text.as_bytes()), &peer)), tag, "{fields}");
        }
    }

    #[test]
    fn later_change_of_a_field_counts() {
        let mut changes = HeaderChanges::default();
        changes.add("A", "1").unwrap();
        changes.set("a", "2").unwrap();
        changes.add("A", "3").unwrap();
        changes.set("B", "1").unwrap();
        changes.remove("b").unwrap();
        changes.add("C", "1").unwrap();
        assert_eq!(changes.written().collect::<Vec<_>>(), [("a", "2"), ("A", "3"), ("C", "1")]);
        assert_eq!(changes.dropped().collect::<Vec<_>>(), ["a", "b"]);
        assert!(changes.drops(b"A") && changes.drops(b"B") && !changes.drops(b"c"));
        changes.set("X-User_ID", "1").unwrap();
        assert!(changes.drops(b"x_user-id") && changes.drops(b"X-USER-ID") && !changes.drops(b"x.user-id"));
        changes.list.pop();

        let mut later = HeaderChanges::default();
        later.remove("A").unwrap();
        later.add("c", "2").unwrap();
        changes.append(&later);
        assert_eq!(changes.written().collect::<Vec<_>>(), [("C", "1"), ("c", "2")]);
        assert!(changes.drops(b"a"));
    }

    /// A change must not be able to end a head early, or to say another length than the proxy does.
    #[test]
    fn change_that_would_break_framing_is_refused() {
        let mut changes = HeaderChanges::default();
        for name in [
            "Content-Length",
            "transfer-encoding",
            "Connection",
            "Upgrade",
            "Host",
            "TE",
            "Keep-Alive",
            "Content_Length",
        ] {
            assert_eq!(changes.set(name, "1"), Err(HeaderEditError::Own), "{name}");
            assert_eq!(changes.add(name, "1"), Err(HeaderEditError::Own), "{name}");
            assert_eq!(changes.remove(name), Err(HeaderEditError::Own), "{name}");
        }
        for value in ["a\r\nb", "a\nb", "a\0", " a", "a\t"] {
            assert_eq!(changes.add("X", value), Err(HeaderEditError::Value), "{value:?}");
        }
        assert!(changes.is_empty());
    }
}
