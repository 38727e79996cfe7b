//! Compiles the filters and timeouts of a rule, or of a backend, to the publisher's.

use contract::client_address::ClientScheme;
use contract::table::{
    CorsPolicy, HeaderChanges, HeaderEditError, HeaderEdits, MirrorFraction, PathMatch, PathRewrite, PathRewriteError,
    Redirect, RouteReply,
};

use super::backends::{self, ResolvedBackend};
use super::conditions::ConditionRefusal;
use super::rule_compiler::{RuleCompiler, UNSUPPORTED_VALUE, invalid};
use crate::publish::{FilterRuleDestination, MirrorRule, RouteFilterRule, RuleTimeouts};
use types::gateway_api::http_filter::{
    HttpCorsFilter, HttpHeaderFilter, HttpPathModifier, HttpRequestMirrorFilter, HttpRequestRedirectFilter,
    HttpRouteFilter, HttpUrlRewriteFilter,
};
use types::gateway_api::http_route::HttpRouteTimeouts;

/// The filters of requests that match `path`. `None`: they pass unchanged. A filter that is not supported is not left out: its
/// requests are answered 500.
pub(super) fn compile(
    compiler: &mut RuleCompiler<'_>,
    filters: &[HttpRouteFilter],
    timeouts: Option<&HttpRouteTimeouts>,
    path: &PathMatch,
) -> Option<RouteFilterRule> {
    let mut rule = RouteFilterRule::default();
    let added = filters.iter().try_for_each(|filter| add(compiler, filter, path, &mut rule));
    let timeouts = added.and_then(|()| timeouts.map_or(Ok(RuleTimeouts::default()), rule_timeouts));
    match timeouts {
        Ok(timeouts) => rule.timeouts = timeouts,
        Err(refusal) => {
            compiler.compiled.unsupported.get_or_insert(refusal);
            return Some(invalid());
        }
    }
    (rule != RouteFilterRule::default()).then_some(rule)
}

fn add(
    compiler: &mut RuleCompiler<'_>,
    filter: &HttpRouteFilter,
    path: &PathMatch,
    rule: &mut RouteFilterRule,
) -> Result<(), ConditionRefusal> {
    let HttpRouteFilter {
        kind,
        request_header_modifier,
        response_header_modifier,
        request_mirror,
        request_redirect,
        url_rewrite,
        cors,
    } = filter;
    match kind.as_str() {
        "RequestHeaderModifier" => {
            request_header_modifier.as_ref().map_or(Ok(()), |changes| change_request(changes, &mut rule.request))
        }
        "ResponseHeaderModifier" => {
            response_header_modifier.as_ref().map_or(Ok(()), |changes| change_response(changes, &mut rule.response))
        }
        "RequestMirror" => {
            let mirror = request_mirror.as_ref().map(|mirror| mirror_rule(compiler, mirror)).transpose()?;
            rule.mirrors.extend(mirror.flatten());
            Ok(())
        }
        "RequestRedirect" => {
            let redirect = request_redirect.as_ref().map(|redirect| redirect_rule(redirect, path)).transpose()?;
            rule.reply = redirect.map(RouteReply::Redirect);
            Ok(())
        }
        "CORS" => {
            rule.cors = cors.as_ref().map(cors_policy).transpose()?;
            Ok(())
        }
        "URLRewrite" => url_rewrite.as_ref().map_or(Ok(()), |rewrite| rewrite_url(rewrite, path, &mut rule.request)),
        other => {
            Err(ConditionRefusal::new(UNSUPPORTED_VALUE, format!("Filters of the type {other} are not supported.")))
        }
    }
}

/// The policy of a filter.
fn cors_policy(filter: &HttpCorsFilter) -> Result<CorsPolicy, ConditionRefusal> {
    filter.policy().map_err(|why| ConditionRefusal::new(UNSUPPORTED_VALUE, why))
}

fn change_request(changes: &HttpHeaderFilter, edits: &mut HeaderEdits) -> Result<(), ConditionRefusal> {
    changes
        .set
        .iter()
        .try_for_each(|field| edits.set(&field.name, &field.value).map_err(|why| header(&field.name, why)))?;
    changes
        .add
        .iter()
        .try_for_each(|field| edits.add(&field.name, &field.value).map_err(|why| header(&field.name, why)))?;
    changes.remove.iter().try_for_each(|name| edits.remove(name).map_err(|why| header(name, why)))
}

fn change_response(changes: &HttpHeaderFilter, fields: &mut HeaderChanges) -> Result<(), ConditionRefusal> {
    changes
        .set
        .iter()
        .try_for_each(|field| fields.set(&field.name, &field.value).map_err(|why| header(&field.name, why)))?;
    changes
        .add
        .iter()
        .try_for_each(|field| fields.add(&field.name, &field.value).map_err(|why| header(&field.name, why)))?;
    changes.remove.iter().try_for_each(|name| fields.remove(name).map_err(|why| header(name, why)))
}

fn header(name: &str, why: HeaderEditError) -> ConditionRefusal {
    ConditionRefusal::new(UNSUPPORTED_VALUE, format!("The header {name:?} {why}."))
}

/// A mirror that leads nowhere gets no copies; the status says so.
fn mirror_rule(
    compiler: &mut RuleCompiler<'_>,
    mirror: &HttpRequestMirrorFilter,
) -> Result<Option<MirrorRule>, ConditionRefusal> {
    let fraction = fraction(mirror)?;
    let found = backends::resolve(compiler.context, compiler.referer, &mirror.backend_ref, compiler.references);
    let keys = match found {
        Ok(ResolvedBackend::Keys(keys)) => keys,
        Ok(ResolvedBackend::TlsRefused) => return Ok(None),
        Err(refusal) => {
            compiler.compiled.unresolved.get_or_insert(refusal);
            return Ok(None);
        }
    };
    // Of the Revisions of a Knative Service, the one with the largest share gets the copies.
    let largest = keys.into_iter().max_by_key(|(_, weight)| *weight);
    Ok(largest.map(|(key, _)| MirrorRule { destination: FilterRuleDestination::Backend(key), fraction }))
}

fn fraction(mirror: &HttpRequestMirrorFilter) -> Result<MirrorFraction, ConditionRefusal> {
    if let Some(percent) = mirror.percent {
        return Ok(MirrorFraction::percent(u8::try_from(percent).unwrap_or_default()));
    }
    let Some(fraction) = &mirror.fraction else { return Ok(MirrorFraction::ALL) };
    let part = |number: i32| u32::try_from(number).unwrap_or_default();
    MirrorFraction::new(part(fraction.numerator), part(fraction.denominator.unwrap_or(100)))
        .ok_or_else(|| ConditionRefusal::new(UNSUPPORTED_VALUE, "The fraction of a mirror is more than all requests."))
}

fn redirect_rule(filter: &HttpRequestRedirectFilter, path: &PathMatch) -> Result<Redirect, ConditionRefusal> {
    let status = filter.status_code.unwrap_or(302);
    let unsupported =
        || ConditionRefusal::new(UNSUPPORTED_VALUE, format!("The status {status} is not one of a redirect."));
    let mut redirect = Redirect::new(status).ok_or_else(unsupported)?;
    if let Some(host) = &filter.hostname {
        redirect
            .set_host(host)
            .map_err(|why| ConditionRefusal::new(UNSUPPORTED_VALUE, format!("The hostname {host:?} {why}.")))?;
    }
    redirect.scheme = filter.scheme.as_deref().map(|scheme| match scheme {
        "https" => ClientScheme::Https,
        _ => ClientScheme::Http,
    });
    redirect.port = filter.port.and_then(|port| u16::try_from(port).ok());
    redirect.path = filter.path.as_ref().map(|modifier| path_rewrite(modifier, path)).transpose()?;
    Ok(redirect)
}

fn rewrite_url(
    filter: &HttpUrlRewriteFilter,
    path: &PathMatch,
    edits: &mut HeaderEdits,
) -> Result<(), ConditionRefusal> {
    if let Some(host) = &filter.hostname {
        edits
            .set_host(host)
            .map_err(|why| ConditionRefusal::new(UNSUPPORTED_VALUE, format!("The hostname {host:?} {why}.")))?;
    }
    if let Some(modifier) = &filter.path {
        edits.set_path(path_rewrite(modifier, path)?);
    }
    Ok(())
}

fn path_rewrite(modifier: &HttpPathModifier, path: &PathMatch) -> Result<PathRewrite, ConditionRefusal> {
    let (text, rewrite) = match modifier.kind.as_str() {
        "ReplacePrefixMatch" => {
            let text = modifier.replace_prefix_match.as_deref().unwrap_or_default();
            (text, PathRewrite::prefix(path.text(), text))
        }
        _ => {
            let text = modifier.replace_full_path.as_deref().filter(|text| !text.is_empty()).unwrap_or("/");
            (text, PathRewrite::full(text))
        }
    };
    rewrite
        .map_err(|why: PathRewriteError| ConditionRefusal::new(UNSUPPORTED_VALUE, format!("The path {text:?} {why}.")))
}

pub(super) fn rule_timeouts(timeouts: &HttpRouteTimeouts) -> Result<RuleTimeouts, ConditionRefusal> {
    let durations = timeouts.durations().map_err(|why| ConditionRefusal::new(UNSUPPORTED_VALUE, why));
    durations.map(|[request, backend_request]| RuleTimeouts { request, backend_request })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;

    fn prefix() -> PathMatch {
        PathMatch::Prefix("/old".into())
    }

    #[test]
    fn redirect_has_what_the_filter_sets() {
        let redirect = |filter: Value| redirect_rule(&serde_json::from_value(filter).unwrap(), &prefix());
        let made = redirect(json!({ "scheme": "https", "hostname": "b.test", "port": 8443, "statusCode": 301,
            "path": { "type": "ReplacePrefixMatch", "replacePrefixMatch": "/new/" } }))
        .unwrap();
        assert_eq!((made.status(), made.scheme, made.port), (301, Some(ClientScheme::Https), Some(8443)));
        assert_eq!(made.path, Some(PathRewrite::prefix("/old", "/new").unwrap()));
        assert_eq!(redirect(json!({})).unwrap().status(), 302);
        assert_eq!(redirect(json!({ "hostname": "a b" })).unwrap_err().reason, UNSUPPORTED_VALUE);
        let query = json!({ "path": { "type": "ReplaceFullPath", "replaceFullPath": "/a?b" } });
        assert_eq!(redirect(query).unwrap_err().reason, UNSUPPORTED_VALUE);
    }

    #[test]
    fn headers_are_set_added_and_removed() {
        let changes =
            json!({ "set": [{ "name": "A", "value": "1" }], "add": [{ "name": "B", "value": "2" }], "remove": ["C"] });
        let changes: HttpHeaderFilter = serde_json::from_value(changes).unwrap();
        let (mut edits, mut fields) = (HeaderEdits::default(), HeaderChanges::default());
        change_request(&changes, &mut edits).unwrap();
        change_response(&changes, &mut fields).unwrap();
        assert_eq!(fields.written().collect::<Vec<_>>(), [("A", "1"), ("B", "2")]);
        assert!(edits.replaces(b"a") && edits.replaces(b"c") && !edits.replaces(b"b"));
        let own = HttpHeaderFilter { remove: vec!["Content-Length".to_owned()], ..HttpHeaderFilter::default() };
        assert_eq!(change_request(&own, &mut edits).unwrap_err().reason, UNSUPPORTED_VALUE);
    }

    #[test]
    fn timeouts_and_fractions_are_read() {
        let timeouts = HttpRouteTimeouts { request: Some("500ms".to_owned()), backend_request: Some("0s".to_owned()) };
        let read = rule_timeouts(&timeouts).unwrap();
        assert_eq!(read.request, Some(Duration::from_millis(500)));
        assert_eq!(read.backend_request, Some(Duration::ZERO));
        let of = |mirror: Value| fraction(&serde_json::from_value(mirror).unwrap());
        assert_eq!(of(json!({})).unwrap(), MirrorFraction::ALL);
        assert_eq!(of(json!({ "percent": 20 })).unwrap(), MirrorFraction::percent(20));
        assert_eq!(
            of(json!({ "fraction": { "numerator": 1, "denominator": 2 } })).unwrap(),
            MirrorFraction::new(1, 2).unwrap()
        );
        assert!(of(json!({ "fraction": { "numerator": 3, "denominator": 2 } })).is_err());
    }
}
