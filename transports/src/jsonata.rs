//! Transforms events by JSONata: an event in structured mode is the input, and the result is the next event. It is sent to the
//! sink, whose response may be transformed too; without a sink it is the response.

mod engine;

use adapter::server::{Request, Response};
use adapter::{Context, Error, Event, Responder, SinkClient, SinkReply, from_http, from_json, to_json};
use futures_util::future::LocalBoxFuture;
use serde::Deserialize;

use engine::{Engine, EvaluationError};

/// The result of an event is sent in one request, whose body receivers of ours limit to this.
const RESULT_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Config {
    expression: String,
    /// The expression for responses of the sink.
    reply_expression: Option<String>,
    /// The sender gets no event of the sink's response.
    #[serde(default)]
    discard_reply: bool,
}

pub(crate) struct Transformer {
    expression: Engine,
    reply: Option<Engine>,
    discards_reply: bool,
    sink: Option<SinkClient>,
}

impl Responder for Transformer {
    type Config = Config;

    fn new(config: Config, _: &Context, sink: Option<SinkClient>) -> Result<Self, Error> {
        let compile = |field: &str, text: &str| {
            Engine::start(text).map_err(|why| Error::config(format!("{field}: {why}; correct the JSONata expression")))
        };
        let reply = config.reply_expression.as_deref();
        Ok(Transformer {
            expression: compile("spec.jsonata.expression", &config.expression)?,
            reply: reply.map(|text| compile("spec.reply.jsonata.expression", text)).transpose()?,
            discards_reply: config.discard_reply,
            sink,
        })
    }

    fn answer(&self, request: Request) -> LocalBoxFuture<'_, Response> {
        Box::pin(async move { self.transform(request).await.unwrap_or_else(|refusal| refusal) })
    }
}

impl Transformer {
    async fn transform(&self, request: Request) -> Result<Response, Response> {
        if request.method != http::Method::POST {
            return Err(Response::new(405, "use POST with a CloudEvent"));
        }
        let mut events = from_http(&request.headers, request.body).map_err(|why| Response::new(400, why))?;
        let event = match (events.pop(), events.is_empty()) {
            (Some(event), true) if event.opaque.is_none() => event,
            (Some(_), true) => return Err(Response::new(415, "use binary mode or application/cloudevents+json")),
            _ => return Err(Response::new(415, "one event a request is transformed: send the events one by one")),
        };
        let transformed = apply(&self.expression, &event).await?;
        let Some(sink) = &self.sink else { return Ok(Response::event(&transformed)) };
        let response = sink.send(transformed).await.map_err(|why| {
            tracing::warn!(%why, "the sink did not answer");
            Response { retry_after: Some(std::time::Duration::from_secs(1)), ..Response::new(502, why.to_string()) }
        })?;
        self.reply(response).await
    }

    /// The response of the sink as the sender gets it.
    async fn reply(&self, response: SinkReply) -> Result<Response, Response> {
        if !response.is_success() {
            return Ok(response.into());
        }
        if self.discards_reply {
            return Ok(Response::new(response.status, ""));
        }
        let Some(expression) = &self.reply else { return Ok(response.into()) };
        match response.event() {
            Ok(Some(event)) => Ok(Response::event(&apply(expression, &event).await?)),
            Ok(None) => Ok(response.into()),
            Err(why) => Err(Response::new(502, format!("the response of the sink is not a CloudEvent: {why}"))),
        }
    }
}

/// The event that an expression makes of another.
async fn apply(expression: &Engine, event: &Event) -> Result<Event, Response> {
    let refuse = |status: u16, why: String| {
        tracing::warn!(id = event.id(), why, "event is not transformed");
        Response { headers: vec![("reason".to_owned(), header_text(&why))], ..Response::new(status, why) }
    };
    let input = serde_json::from_slice(&to_json(event)).map_err(|why| refuse(400, why.to_string()))?;
    let result = expression.evaluate(input).await.map_err(|why| match why {
        // The same event would fail again.
        EvaluationError::Expression(why) => refuse(422, why),
        EvaluationError::Ended => refuse(503, "the adapter ends; send the event again".to_owned()),
    })?;
    let bytes = serde_json::to_vec(&result).map_err(|why| refuse(422, why.to_string()))?;
    if bytes.len() > RESULT_BYTES_MAX {
        return Err(refuse(422, format!("the result has {} bytes, limit {RESULT_BYTES_MAX}", bytes.len())));
    }
    if !result.is_object() {
        return Err(refuse(422, "the expression has no result, or one that is not a CloudEvent object".to_owned()));
    }
    let mut transformed =
        from_json(&bytes).map_err(|why| refuse(422, format!("the result is not a CloudEvent: {why}")))?;
    transformed.traceparent.clone_from(&event.traceparent);
    Ok(transformed)
}

/// A header holds printable ASCII only.
fn header_text(why: &str) -> String {
    why.chars().map(|one| if one.is_ascii_graphic() || one == ' ' { one } else { '?' }).take(500).collect()
}
