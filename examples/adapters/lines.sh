#!/bin/sh
# Each line of a file becomes an event. ADAPTER_RECEIVER={"path": "FILE"}. It has no health listener.
path=$(printf %s "$ADAPTER_RECEIVER" | sed -n 's/.*"path": *"\([^"]*\)".*/\1/p')
[ -n "$path" ] || { echo 'ADAPTER_RECEIVER: path: is missing' >&2; exit 1; }
trap 'exit 0' TERM
number=0
while IFS= read -r line || [ -n "$line" ]; do
    number=$((number + 1))
    until curl -sf -m 30 -o /dev/null -H 'content-type: text/plain' -H 'ce-specversion: 1.0' -H 'ce-type: line' -H "ce-source: $path" -H "ce-id: $number" --data-raw "$line" "$K_SINK"; do sleep 1; done
done < "$path"
