package ctl

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/ctltest"
	"github.com/lofamo/lofamo/internal/testing/clienttest"
	"github.com/lofamo/lofamo/pkg/response/policy"
)

func TestResponsesOutput(t *testing.T) {
	r := ctltest.Responding(t)
	open := "lofamoctl: BREAKER OPEN since 11:59:00.000: 13 of 64 nodes went bad within 5m0s: only notifications begin until " +
		"somebody closes it: lofamoctl response breaker close --reason REASON\n"
	observed := "lofamoctl: an observe-only policy does nothing: the audit records the steps it would take; " +
		"'mode: enforce' in its spec lets it act\n"
	for _, tc := range []struct{ name, args, stderr string }{
		{"policies.txt", "policy get", ""},
		{"policies-wide.txt", "policy get -o wide", ""},
		{"policies.json", "policy get -o json", ""},
		{"policy.txt", "policy get drain", ""},
		{"policy.yaml", "policy get drain -o yaml", ""},
		{"policy-apply.txt", "policy apply --defaults", observed},
		{"policy-delete.txt", "policy delete a --dry-run", ""},
		{"policy-defaults-one.txt", "policy defaults mask-sick-link drain-failed-memory", ""},
		{"policy-check.txt", "policy check --defaults", ""},
		{"notify-add.txt", "notify add chat https://hooks.slack.com/services/T0 --format slack", ""},
		{"notify-list.txt", "notify list", ""},
		{"notify-list.json", "notify list -o json", ""},
		{"notify-test.txt", "notify test chat", ""},
		{"notify-remove.txt", "notify remove chat", ""},
		{"responses.txt", "get responses", open},
		{"responses-wide.txt", "get responses -o wide", open},
		{"responses.yaml", "get responses -o yaml", ""},
		{"response.txt", "get response r7-12", ""},
		{"response.json", "get response r7-12 -o json", ""},
		{"breaker.txt", "get breaker", ""},
		{"breaker.json", "get breaker -o json", ""},
		{"breaker-close.txt", "response breaker close --reason looked", ""},
		{"response-approve.txt", "response approve r7-12", ""},
		{"policy-events.txt", "get events", ""},
		{"audit.txt", "audit", ""},
		{"audit.json", "audit -o json", ""},
		{"audit-export.txt", "audit export", "lofamoctl: 5 lines; the last is 5 with hash HASH\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := run(t, nil, r.Flags(strings.Fields(tc.args)...)...)
			want := strings.Replace(tc.stderr, "HASH", lastHash(r.Server.Responses.Lines), 1)
			if got.code != 0 || got.stderr != want {
				t.Fatalf("exit code %d, stderr %q, want %q", got.code, got.stderr, want)
			}
			ctltest.Golden(t, tc.name, got.stdout)
		})
	}
}

// lastHash is the hash of the last line.
func lastHash(lines []*lofamov1.AuditLine) string {
	last := lines[len(lines)-1].GetLine()
	return last[len(last)-66 : len(last)-2]
}

// TestResponsesAsked: the exact requests.
func TestResponsesAsked(t *testing.T) {
	r := ctltest.Responding(t)
	s := &r.Server.Responses
	for _, tc := range []struct {
		args []string
		want string // part of the request
	}{
		{[]string{"policy", "apply", "--defaults", "--dry-run", "--expect", "a=3", "--expect", "b=0"}, `dry_run:true`},
		{[]string{"policy", "delete", "a", "b", "--expect", "a=3"}, `names:"a" names:"b" expected:{key:"a" value:3}`},
		{[]string{"policy", "get", "a", "--version", "2"}, `name:"a" version:2`},
		{[]string{"get", "responses", "--node", "1,0,1", "--policy", "p", "--state", "waiting,FAILED", "--all", "--acting"},
			`node:"1,0,1" policy:"p" states:RESPONSE_WAITING states:RESPONSE_FAILED all:true acting:true`},
		{[]string{"response", "approve", "r7-12", "--reason", "seen"}, `approve id:"r7-12" reason:"seen"`},
		{[]string{"response", "approve", "r7-12"}, `approve id:"r7-12"`},
		{[]string{"response", "deny", "r7-12", "--reason", "no"}, `deny id:"r7-12" reason:"no"`},
		{[]string{"response", "cancel", "r7-12", "--reason", "no"}, `cancel id:"r7-12" reason:"no"`},
		{[]string{"response", "retry", "r7-12"}, `retry id:"r7-12"`},
		{[]string{"response", "settle", "r7-12", "--happened", "--reason", "seen"}, `settle id:"r7-12" happened:true reason:"seen"`},
		{[]string{"response", "settle", "r7-12", "--not-happened", "--reason", "seen"}, `settle id:"r7-12" reason:"seen"`},
		{[]string{"response", "breaker", "close", "--reason", "seen"}, `close reason:"seen"`},
		{[]string{"audit", "--from", "7", "--limit", "5"}, `audit from:7 limit:5`},
		{[]string{"audit", "export", "--from", "3"}, `export from:3`},
	} {
		if got := run(t, nil, r.Flags(tc.args...)...); got.code != 0 {
			t.Errorf("%v: %+v", tc.args, got)
		}
		// protobuf's text varies in its white space on purpose.
		if last := strings.ReplaceAll(s.Asked[len(s.Asked)-1], "  ", " "); !strings.Contains(last, tc.want) {
			t.Errorf("%v: asked %s: want %s", tc.args, last, tc.want)
		}
	}
}

// longTimeout is a policy whose executor refuses the timeout.
const longTimeout = `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: a}
spec:
  match: fault.component == "host"
  steps: [{name: run, executor: command, parameters: {command: a}, timeout: 25h}]
`

func TestResponsesRefusals(t *testing.T) {
	r := ctltest.Responding(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	for _, tc := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"policy"}, 2, "want apply, get, check"},
		{[]string{"policy", "aply"}, 2, "policy aply: want apply, get, check"},
		{[]string{"policy", "apply"}, 2, "-f is missing"},
		{[]string{"policy", "apply", "--defaults", "-f", "x"}, 2, "want one of them"},
		{[]string{"policy", "apply", "--defaults", "--expect", "a"}, 2, `--expect "a": want NAME=VERSION`},
		{[]string{"policy", "apply", "-f", "/no/such"}, 2, "no such file"},
		{[]string{"policy", "get", "--version", "2"}, 2, "want the NAME"},
		{[]string{"policy", "check", "-f", write("p.yaml", "kind: X\n")}, 1, `kind: given "X": want one of ResponsePolicy`},
		{[]string{"policy", "check", "-f", write("long.yaml", longTimeout)}, 1,
			"policy a: spec.steps[0].timeout: given 25h: want at most 24h with command"},
		{[]string{"policy", "delete"}, 2, "NAME is missing"},
		{[]string{"policy", "defaults", "nonsense"}, 2, `policy "nonsense": none of that name is shipped: want one of tell-kubernetes, `},
		{[]string{"policy", "test", "--defaults", "--since", "-1h"}, 2, "want a positive time"},
		{[]string{"policy", "test", "--defaults", "--config", write("s.yaml", "responses: {maxNodos: 7}")}, 2, "maxNodos"},
		{[]string{"policy", "test", "--defaults", "--config", write("s2.yaml", "responses: {maxNodes: 0}")}, 2, "MaxNodes: given 0"},
		{[]string{"policy", "test", "--defaults", "--max-percent", "0"}, 2, "MaxPercent: given 0"},
		{[]string{"policy", "test", "--defaults", "--events", write("e.json", `{"events": 3}`), "--topology", "x"},
			2, "e.json: not a list of events"},
		{[]string{"policy", "test", "--defaults", "--events", write("e2.json", `{"events": [{"node":"a","component":"soul","to":"FAILED"}]}`),
			"--topology", write("t.yaml", "dims: 1x1x1")}, 1, "no event to replay"},
		{[]string{"get", "responses", "--state", "dead"}, 2, `--state "dead": want approved, done,`},
		{[]string{"get", "response"}, 2, "ID (such as r7-12) is missing"},
		{[]string{"response"}, 2, "want approve, deny"},
		{[]string{"response", "approve"}, 2, "ID (such as r7-12) is missing"},
		{[]string{"response", "deny", "r7-12"}, 2, "--reason is missing"},
		{[]string{"response", "cancel", "r7-12", "--reason", " "}, 2, "--reason is missing"},
		{[]string{"response", "settle", "r7-12", "--reason", "x"}, 2, "want one of --happened and --not-happened"},
		{[]string{"response", "settle", "r7-12", "--happened", "--not-happened", "--reason", "x"}, 2,
			"want one of --happened and --not-happened"},
		{[]string{"response", "settle", "r7-12", "--happened"}, 2, "--reason is missing"},
		{[]string{"response", "breaker"}, 2, "want close"},
		{[]string{"response", "breaker", "close"}, 2, "--reason is missing"},
		{[]string{"audit", "nonsense"}, 2, "want export, verify or nothing"},
		{[]string{"audit", "--limit", "0"}, 2, "--limit 0"},
		{[]string{"audit", "export", "--from", "3", "-f", "x"}, 2, "want only one"},
		{[]string{"audit", "verify"}, 2, "-f is missing"},
		{[]string{"audit", "verify", "-f", write("empty", ""), "--hash", "ab"}, 1, "no line: want a last line with hash ab"},
		{[]string{"audit", "verify", "-f", write("part", "{")}, 1, "1 bytes after line 0"},
	} {
		before := len(r.Server.Responses.Asked)
		if got := run(t, nil, r.Flags(tc.args...)...); got.code != tc.code || !strings.Contains(got.stderr, tc.text) {
			t.Errorf("%v: %+v, want %d with %q", tc.args, got, tc.code, tc.text)
		}
		if len(r.Server.Responses.Asked) != before {
			t.Errorf("%v: asked all the same", tc.args)
		}
	}
	for _, tc := range []struct {
		err  error
		args []string
		code int
		text string
	}{
		{status.Error(codes.InvalidArgument, "policy a: spec.match: bad"), []string{"policy", "apply", "--defaults"}, 2,
			"policy apply: policy a: spec.match: bad"},
		{status.Error(codes.Aborted, "approve: too late"), []string{"response", "approve", "r7-12"}, 1, "response approve: approve: too late"},
		{status.Error(codes.NotFound, `response "r7-12": there is none`), []string{"response", "cancel", "r7-12", "--reason", "x"},
			2, "there is none"},
		{status.Error(codes.PermissionDenied, "role viewer"), []string{"response", "retry", "r7-12"}, 1, "role viewer"},
		{status.Error(codes.Unimplemented, "responses are switched off"), []string{"get", "responses"}, 1, "responses are switched off"},
	} {
		r.Server.Responses.Err = tc.err
		if got := run(t, nil, r.Flags(tc.args...)...); got.code != tc.code || !strings.Contains(got.stderr, tc.text) {
			t.Errorf("%v: %+v, want %d with %q", tc.args, got, tc.code, tc.text)
		}
	}
}

// TestWatchResponsesOutput: all present responses, then changes, until the supervisor ends the stream.
func TestWatchResponsesOutput(t *testing.T) {
	r := ctltest.Responding(t)
	r.Server.Responses.Err = status.Error(codes.Unavailable, "stopping")
	for _, tc := range []struct{ name, args string }{{"responses-watch.txt", "get responses -w"},
		{"responses-watch.json", "get responses --watch -o json"}} {
		got := run(t, nil, r.Flags(strings.Fields(tc.args)...)...)
		if got.code != 1 || !strings.Contains(got.stderr, "stopping") {
			t.Errorf("%+v", got)
		}
		ctltest.Golden(t, tc.name, got.stdout)
	}
}

// TestWatchResponsesAtNextSupervisor: after a supervisor failed, the next one sends all open responses again. The watch prints only those
// that changed or ended meanwhile.
func TestWatchResponsesAtNextSupervisor(t *testing.T) {
	r := ctltest.Responding(t)
	next := clienttest.Serve(t, r.Dir, r.Map)
	said := func(id string, version uint64, state lofamov1.ResponseState) *lofamov1.Response {
		return &lofamov1.Response{Id: id, Policy: "drain", Node: "n1-0-1", Component: "memory", State: state, Version: version}
	}
	const waits, done = lofamov1.ResponseState_RESPONSE_WAITING, lofamov1.ResponseState_RESPONSE_DONE
	breaker := func() *lofamov1.ResponseBreaker {
		return &lofamov1.ResponseBreaker{Open: true, At: ctltest.Ago(time.Minute), Detail: "many"}
	}
	closed := said("r1-5", 3, done)
	closed.Closed = ctltest.Ago(time.Second)
	r.Server.Responses.Changes = []*lofamov1.WatchResponsesResponse{{Breaker: breaker(), Responses: []*lofamov1.Response{
		said("r1-1", 1, waits), said("r1-2", 1, waits), said("r1-3", 1, waits), said("r1-4", 1, waits), said("r1-5", 2, waits),
	}}, {Responses: []*lofamov1.Response{closed}}}
	r.Server.Responses.Err = status.Error(codes.Unavailable, "stopping")
	next.Responses.Changes = []*lofamov1.WatchResponsesResponse{{Breaker: breaker(), Responses: []*lofamov1.Response{
		said("r1-1", 1, waits), said("r1-2", 2, done), // unchanged, and changed
	}}}
	next.Responses.Kept = map[string]*lofamov1.Response{"r1-3": said("r1-3", 4, done), "r1-5": closed} // r1-4 is not kept
	next.Responses.Err = status.Error(codes.PermissionDenied, "no")
	r.Server.Address += "," + next.Address
	got := run(t, nil, r.Flags("get", "responses", "-w")...)
	var rows []string
	for line := range strings.Lines(got.stdout) {
		if f := strings.Fields(line); f[0] != "ID" {
			rows = append(rows, f[0]+" "+f[3])
		}
	}
	want := "r1-1 waiting, r1-2 waiting, r1-3 waiting, r1-4 waiting, r1-5 waiting, r1-5 done, r1-2 done, r1-3 done, r1-4 no"
	if strings.Join(rows, ", ") != want || got.code != 1 || strings.Count(got.stderr, "BREAKER OPEN") != 1 {
		t.Errorf("rows %v, want %s: %+v", rows, want, got)
	}
}

// TestAuditFile: an export continues at the end of the file, whatever its content, and verify detects changes to the
// file.
func TestAuditFile(t *testing.T) {
	r := ctltest.Responding(t)
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	all := ctltest.AuditLines(t, 12)
	export := func(lines []*lofamov1.AuditLine) result {
		t.Helper()
		r.Server.Responses.Lines = lines
		return run(t, nil, r.Flags("audit", "export", "-f", file)...)
	}
	verify := func(args ...string) result {
		return run(t, nil, append([]string{"audit", "verify", "-f", file}, args...)...)
	}
	if got := export(nil); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if got := verify(); got.code != 0 || got.stdout != "no lines: nothing to verify\n" {
		t.Errorf("an audit without lines: %+v", got)
	}
	if got := export(all[:5]); got.code != 0 || !strings.Contains(got.stderr, "5 lines; the last is 5") {
		t.Fatalf("%+v", got)
	}
	// The last write was cut off.
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(all[5].GetLine()[:40]); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got := verify(); got.code != 1 || !strings.Contains(got.stderr, "40 bytes after line 5") {
		t.Errorf("a line that was cut off passes: %+v", got)
	}
	if got := export(all[5:]); got.code != 0 || !strings.Contains(got.stderr, "7 lines; the last is 12") {
		t.Fatalf("%+v", got)
	}
	if asked := r.Server.Responses.Asked; !strings.Contains(asked[len(asked)-1], "from:5") {
		t.Errorf("asked %s", asked[len(asked)-1])
	}
	if got := verify("--hash", lastHash(all)); got.code != 0 ||
		got.stdout != fmt.Sprintf("12 lines in order, 1 to 12; the last has hash %s\n", lastHash(all)) {
		t.Errorf("%+v", got)
	}
	if got := verify("--hash", strings.Repeat("0", 64)); got.code != 1 || !strings.Contains(got.stderr, "line 12, the last, has hash") {
		t.Errorf("%+v", got)
	}
	if got := export(all[7:9]); got.code != 1 || !strings.Contains(got.stderr, "audit line 8: it comes after line 12") {
		t.Errorf("supervisors with another audit: %+v", got)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(b), "approver/ann", "approver/bob", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := verify(); got.code != 1 || !strings.Contains(got.stderr, "audit line 3: its hash is") {
		t.Errorf("%+v", got)
	}
	if got := export(all[11:]); got.code != 1 || !strings.Contains(got.stderr, "audit line 3: its hash is") {
		t.Errorf("a file that was changed is gone on with: %+v", got)
	}
}

// TestExportRefusesAuditWithoutTheFilesLastLine: an export continues a file only if the supervisors have its last line, or the line
// after it. After a restore from a snapshot they may have fewer lines, or others.
func TestExportRefusesAuditWithoutTheFilesLastLine(t *testing.T) {
	r := ctltest.Responding(t)
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	all, others := ctltest.AuditLines(t, 12), ctltest.AuditLines(t, 13)
	for _, tc := range []struct {
		what  string
		lines []*lofamov1.AuditLine
		err   error
		code  int
		text  string
	}{
		{"a new file", all[:10], nil, 0, "10 lines; the last is 10"},
		{"no new line", all[9:10], nil, 0, "0 lines; the last is 10"},
		{"fewer lines", nil, nil, 1, "line 10: it is the file's last line, and the supervisors have none with this number"},
		{"fewer lines, a refusal", nil, status.Error(codes.OutOfRange, "from: given 11: want at most 9"), 1, "want at most 9"},
		{"another line", others[9:10], nil, 1, "line 10: the file's last line has hash"},
		{"another line and more", others[9:], nil, 1, "line 10: the file's last line has hash"},
		{"the last line is dropped", all[10:], nil, 0, "2 lines; the last is 12"},
	} {
		r.Server.Responses.Lines, r.Server.Responses.Err = tc.lines, tc.err
		before := len(r.Server.Responses.Asked)
		if got := run(t, nil, r.Flags("audit", "export", "-f", file)...); got.code != tc.code || !strings.Contains(got.stderr, tc.text) {
			t.Errorf("%s: %+v: want %d with %q", tc.what, got, tc.code, tc.text)
		}
		if asked := r.Server.Responses.Asked[before:]; tc.err != nil && (len(asked) != 2 || !strings.Contains(asked[1], "from:11")) {
			t.Errorf("%s: asked %v: want a second request, from the line after the last", tc.what, asked)
		}
	}
	if got := run(t, nil, "audit", "verify", "-f", file, "--hash", lastHash(all)); got.code != 0 {
		t.Errorf("the file: %+v", got)
	}
}

// TestExportKeepsForeignFile: the wrong name is that of a file without a line break.
func TestExportKeepsForeignFile(t *testing.T) {
	r := ctltest.Responding(t)
	file := filepath.Join(t.TempDir(), "policy.json")
	const text = `{"name":"mine"}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := run(t, nil, r.Flags("audit", "export", "-f", file)...); got.code != 1 || !strings.Contains(got.stderr, "no line of an audit") {
		t.Errorf("%+v", got)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != text {
		t.Errorf("the file is %q, %v", b, err)
	}
}

// TestChangedAuditIsSaid: lines from a supervisor are checked too.
func TestChangedAuditIsSaid(t *testing.T) {
	r := ctltest.Responding(t)
	l := r.Server.Responses.Lines[2]
	l.Line = strings.Replace(l.GetLine(), "approver/ann", "approver/bob", 1)
	for _, args := range [][]string{{"audit"}, {"audit", "-o", "json"}, {"audit", "export"}} {
		if got := run(t, nil, r.Flags(args...)...); got.code != 1 || !strings.Contains(got.stderr, "audit line 3: its hash is") ||
			got.stdout == "" {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

// recording is a fault of a memory that stays, another that goes, and a rack.
func recording() []*lofamov1.Event {
	ev := func(at time.Duration, node, component string, to lofamov1.State, cause lofamov1.Cause) *lofamov1.Event {
		return &lofamov1.Event{
			Kind: lofamov1.EventKind_COMPONENT_CHANGED, Node: node, Component: component, To: to, Cause: cause,
			Time: timestamppb.New(ctltest.Now.Add(at - time.Hour)), Observer: node + "/host",
		}
	}
	group := &lofamov1.Event{
		Kind: lofamov1.EventKind_GROUP_CHANGED, To: lofamov1.State_FAILED, Time: timestamppb.New(ctltest.Now.Add(5*time.Minute - time.Hour)),
		Group: &lofamov1.Group{Id: "label/rack=r0", Kind: lofamov1.GroupKind_LABEL, State: lofamov1.State_FAILED, Cause: lofamov1.Cause_NODE,
			Members: []string{"n0-0-0"}, Size: 1, Of: 2, Since: ctltest.Ago(55 * time.Minute)},
	}
	return []*lofamov1.Event{
		ev(0, "n0-0-0", "memory", lofamov1.State_FAILED, lofamov1.Cause_MEMORY),
		ev(time.Minute, "n1-0-0", "memory", lofamov1.State_FAILED, lofamov1.Cause_MEMORY),
		ev(10*time.Second, "n1-0-0", "soul", lofamov1.State_FAILED, lofamov1.Cause_MEMORY),
		ev(90*time.Second, "n1-0-0", "memory", lofamov1.State_NORMAL, lofamov1.Cause_NONE),
		{Kind: lofamov1.EventKind_MAINTENANCE_CHANGED, Node: "n1-0-0", Time: timestamppb.New(ctltest.Now.Add(2*time.Minute - time.Hour))},
		{Kind: lofamov1.EventKind_MAINTENANCE_CHANGED, Node: "n1-0-0", Time: timestamppb.New(ctltest.Now.Add(3*time.Minute - time.Hour)),
			Ended: true},
		{Kind: lofamov1.EventKind_POLICY_CHANGED, Policy: "p"}, group,
	}
}

func TestPolicyTest(t *testing.T) {
	m := ctltest.Healthy(t, "2x1x1")
	for i, ev := range recording() {
		m.Commit(uint64(i+2), ev)
	}
	r := ctltest.StartRemote(t, m)
	r.Server.Operators.Topology = someTopology()
	for _, tc := range []struct{ name, args string }{
		{"policy-test.txt", "policy test --defaults --enforce"},
		{"policy-test-observe.txt", "policy test --defaults --since 59m30s"},
		{"policy-test.json", "policy test --defaults --enforce --approvals 2 --approve ann,bob -o json"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := run(t, nil, r.Flags(strings.Fields(tc.args)...)...)
			if got.code != 0 || got.stderr != "lofamoctl: 1 event that cannot be read, left out\n" {
				t.Fatalf("exit code %d, stderr %q", got.code, got.stderr)
			}
			ctltest.Golden(t, tc.name, got.stdout)
		})
	}
	// Limits of a configuration, and a flag that goes before them.
	conf := filepath.Join(t.TempDir(), "supervisor.yaml")
	if err := os.WriteFile(conf, []byte("responses: {maxNodes: 7, approvals: 2}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args string
		want string // of the table
		more bool   // the line has it
	}{{"--config " + conf, "approval: 0 of 2", true}, {"--config " + conf + " --approvals 0", "approval: 0 of 2", false}} {
		got := run(t, nil, r.Flags(strings.Fields("policy test --defaults --enforce "+tc.args)...)...)
		if got.code != 0 || strings.Contains(got.stdout, tc.want) != tc.more {
			t.Errorf("%s: %+v", tc.args, got)
		}
	}
	// The same from files, without any supervisor.
	dir := t.TempDir()
	for file, args := range map[string]string{"events": "get events -o yaml", "topology": "get topology -o json"} {
		printed := run(t, nil, r.Flags(strings.Fields(args)...)...)
		if err := os.WriteFile(filepath.Join(dir, file), []byte(printed.stdout), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := run(t, nil, "policy", "test", "--defaults", "--enforce", "--events", filepath.Join(dir, "events"), "--topology",
		filepath.Join(dir, "topology"))
	if got.code != 0 {
		t.Fatalf("%+v", got)
	}
	ctltest.Golden(t, "policy-test.txt", got.stdout)
}

// TestPolicyOffline: check and defaults make no calls.
func TestPolicyOffline(t *testing.T) {
	if got := run(t, nil, "policy", "check", "--defaults"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	got := run(t, nil, "policy", "defaults")
	if got.code != 0 {
		t.Fatalf("%+v", got)
	}
	docs, err := policy.Parse([]byte(got.stdout))
	if err != nil || len(docs) < 8 {
		t.Errorf("%d policies are printed, %v", len(docs), err)
	}
}
