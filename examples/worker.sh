#!/usr/bin/env bash
# A Longshore worker that needs bash, curl and python3 (for JSON only). Copy it, and put your work
# into `handle`.
#
#     LONGSHORE_URL=http://127.0.0.1:8080 LONGSHORE_KEY=lsk_... bash worker.sh mail reports
#
# It claims one job at a time from the queues on its command line; start more copies for more
# concurrency. It keeps retrying while the broker is unavailable, and sends heartbeats while a job
# runs. On SIGTERM or Ctrl-C it finishes and settles its job before it exits.
set -u

for program in curl python3; do
  command -v $program > /dev/null || { echo "this worker needs $program" >&2; exit 1; }
done

URL=${LONGSHORE_URL:-http://127.0.0.1:8080}
URL=${URL%/}
KEY=${LONGSHORE_KEY:-} # needs the scope `work`, if the broker requires keys
WORKER_ID=$HOSTNAME-$$-$RANDOM$RANDOM # unique for each copy
# Removed at the end and not by an EXIT trap: a subshell that is killed right after its start runs that
# trap too.
WORK=$(mktemp -d)

# Yours: begin
# Reads the payload from stdin and prints the result as JSON. JOB_ID, JOB_TYPE and ATTEMPT are in the
# environment. A status other than 0 makes the broker retry the job later, with stderr as the error;
# status 65 makes the job a dead letter at once. It gets SIGTERM when the job is cancelled.
handle() {
  case $JOB_TYPE in
    welcome) python3 -c 'import json, sys; print(json.dumps({"greeted": json.load(sys.stdin)["to"]}))' ;;
    *) echo "this worker does not know jobs of type $JOB_TYPE" >&2; return 65 ;;
  esac
}
# Yours: end

STOPPING=
trap 'STOPPING=1' TERM INT

# Reads the response of a claim: prints variables for the shell, and writes payload and lease token
# of the job, if any, to files.
read_claim() {
  python3 -c 'import json, shlex, sys
response = json.load(open(sys.argv[1] + "/response.claim"))
variables = {"DIRECTIVE": response["directive"], "PAUSE": response["poll_after_ms"] / 1000, "JOB_ID": ""}
for job in response["jobs"]:
    variables |= {"JOB_ID": job["id"], "JOB_TYPE": job["job_type"], "ATTEMPT": job["attempt"], "BETWEEN_HEARTBEATS": job["lease_seconds"] / 3}
    json.dump(job["payload"], open(sys.argv[1] + "/payload", "w"))
    json.dump({"lease_token": job["lease_token"]}, open(sys.argv[1] + "/lease", "w"))
for name, value in variables.items():
    print(name + "=" + shlex.quote(str(value)))' "$WORK"
}

# Sends one request: `post PATH BODY_FILE [HEADER]`. Writes the response to
# $WORK/response.<last part of PATH>. Returns 0 if the broker accepted the request, 1 if it rejected
# the request (do not retry), and 2 if the request should be retried.
post() {
  local response=$WORK/response.${1##*/} status
  status=$(curl --silent --max-time 60 --output "$response" --write-out '%{http_code}' --header 'Content-Type: application/json' \
    ${KEY:+--header "@$WORK/key"} ${3:+--header "$3"} --data-binary "@$2" "$URL$1")
  case $status in
    2??) return 0 ;;
    000 | 429 | 5??) return 2 ;;
    *) echo "$1: HTTP $status: $(cat "$response")" >&2; return 1 ;;
  esac
}

# Retries until the broker responds, because it may be restarting. A repeated settlement, or a claim
# with the same Idempotency-Key, has the effect of one.
post_with_retries() {
  local status
  while post "$@"; status=$?; [ $status = 2 ]; do
    echo "$1: no response; retrying" >&2
    sleep 1
  done
  return $status
}

# Claims the next job; waits up to 20 seconds for one. The Idempotency-Key makes the claim
# repeatable: if the response is lost, the retry gets the same job. The claim runs in the background,
# because a trap runs at once only during `wait`: on SIGTERM it is repeated without waiting.
claim() {
  local key="Idempotency-Key: $WORKER_ID-$((++CLAIMS))" poll status
  set -m # gives the claim its own process group, which can be killed as a whole
  post_with_retries /claim "$WORK/claim" "$key" &
  poll=$!
  set +m
  wait $poll
  status=$?
  [ -z "$STOPPING" ] && return $status
  kill -- -$poll 2> /dev/null
  wait $poll 2> /dev/null
  # If this fails too, another worker gets the job when the lease expires.
  post /claim "$WORK/claim_now" "$key" || echo '{"jobs": [], "directive": "stop", "poll_after_ms": 0}' > "$WORK/response.claim"
}

# Handles the job while heartbeats extend its lease, then settles it.
run() {
  local handler heartbeats status
  set -m # separate process groups: SIGTERM and Ctrl-C reach only the worker, so that the handler can finish
  handle < "$WORK/payload" > "$WORK/result" 2> "$WORK/errors" &
  handler=$!
  send_heartbeats $handler &
  heartbeats=$!
  set +m
  while wait $handler; status=$?; kill -0 $handler 2> /dev/null; do :; done # a signal interrupts `wait`
  kill -- -$heartbeats 2> /dev/null
  wait $heartbeats 2> /dev/null
  if [ $status = 0 ] && settlement complete < "$WORK/lease" > "$WORK/complete" 2>> "$WORK/errors"; then
    post_with_retries "/jobs/$JOB_ID/complete" "$WORK/complete" && return
    status=65
    cat "$WORK/response.complete" >> "$WORK/errors"
  fi
  settlement fail "$status" < "$WORK/lease" > "$WORK/fail"
  post_with_retries "/jobs/$JOB_ID/fail" "$WORK/fail"
}

# Adds the result, or the error, to the lease token.
settlement() {
  python3 -c 'import json, sys
folder, outcome, *status = sys.argv[1:]
body = json.load(sys.stdin)
if outcome == "complete":
    body["result"] = json.loads(open(folder + "/result").read() or "null")
else:
    message = open(folder + "/errors", errors="replace").read()[-4000:].strip() or "exit status " + status[0]
    body["error"] = {"message": message, "error_type": "exit_" + status[0]}
    body["retryable"] = status[0] != "65"
print(json.dumps(body))' "$WORK" "$@"
}

# Sends three heartbeats per lease period, so that two may get lost. Ends itself and the handler if the
# job was cancelled, the lease is lost, or the worker ($$) was killed.
send_heartbeats() {
  local status
  while sleep "$BETWEEN_HEARTBEATS" && kill -0 $$ 2> /dev/null; do
    post "/jobs/$JOB_ID/heartbeat" "$WORK/lease"
    status=$?
    [ $status = 2 ] && continue
    [ $status = 0 ] && grep -Eq '"action": ?"continue"' "$WORK/response.heartbeat" && continue
    break
  done
  kill -- -"$1"
}

[ -n "$KEY" ] && (umask 077 && echo "Authorization: Bearer $KEY" > "$WORK/key") # not on curl's command line, which other users can see
[ $# -gt 0 ] || set -- default
python3 -c 'import json, sys
folder, worker_id, *queues = sys.argv[1:]
claim = {"queues": queues, "worker_id": worker_id, "wait_seconds": 20}
json.dump(claim, open(folder + "/claim", "w"))
json.dump(claim | {"wait_seconds": 0}, open(folder + "/claim_now", "w"))' "$WORK" "$WORKER_ID" "$@"
export JOB_ID JOB_TYPE ATTEMPT
CLAIMS=0
STATUS=0
DIRECTIVE=run # an operator can drain this worker: POST /workers/{id}/drain
while [ "$DIRECTIVE" = run ] && [ -z "$STOPPING" ]; do
  claim || { STATUS=1; break; }
  eval "$(read_claim)"
  if [ -n "$JOB_ID" ]; then run; else sleep "$PAUSE"; fi
done
rm -rf "$WORK"
exit $STATUS
