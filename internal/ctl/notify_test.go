package ctl

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/ctl/ctltest"
)

// stdin makes a text the standard input of the commands that follow in a test.
func stdin(t *testing.T, text string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "stdin")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	was := os.Stdin
	os.Stdin = f
	t.Cleanup(func() {
		os.Stdin = was
		_ = f.Close()
	})
}

// TestNotifyAsked: the exact requests. A URL may come from the standard input, and a secret only from a file.
func TestNotifyAsked(t *testing.T) {
	r := ctltest.Responding(t)
	secret := filepath.Join(t.TempDir(), "secret")
	const text = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	if err := os.WriteFile(secret, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ args, stdin, want string }{
		{"notify add chat https://a.example/x", "", `add name:"chat" url:"https://a.example/x" format:NOTIFY_GENERIC`},
		{"notify add chat - --format teams", " https://a.example/x?sig=1\n", `url:"https://a.example/x?sig=1" format:NOTIFY_TEAMS`},
		{"notify add chat https://a.example --secret-file " + secret, "", `secret:"` + text + `"`},
		{"notify test chat", "", `test name:"chat"`},
		{"notify remove chat", "", `remove name:"chat"`},
	} {
		stdin(t, tc.stdin)
		if got := run(t, nil, r.Flags(strings.Fields(tc.args)...)...); got.code != 0 {
			t.Errorf("%s: %+v", tc.args, got)
		}
		asked := r.Server.Responses.Asked
		if last := strings.ReplaceAll(asked[len(asked)-1], "  ", " "); !strings.Contains(last, tc.want) {
			t.Errorf("%s: asked %s: want %s", tc.args, last, tc.want)
		}
	}
}

// TestNotifyExitCodes: a wrong call is a usage error, which names the field; a target that does not accept a message is a failure.
func TestNotifyExitCodes(t *testing.T) {
	r := ctltest.Responding(t)
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(args, want string, code int) {
		t.Helper()
		got := run(t, nil, r.Flags(strings.Fields(args)...)...)
		if got.code != code || !strings.Contains(got.stderr, want) || strings.Contains(got.stderr, "hunter2") {
			t.Errorf("%s: exit code %d, %q: want %d, %q and no credential", args, got.code, got.stderr, code, want)
		}
	}
	check("notify", "want add, list, test or remove", command.ExitUsage)
	check("notify send", "want add, list, test or remove", command.ExitUsage)
	check("notify add chat", "URL is missing", command.ExitUsage)
	check("notify add chat ftp://hunter2", `url: given the scheme "ftp"`, command.ExitUsage)
	check("notify add Chat https://hunter2", `name: given "Chat"`, command.ExitUsage)
	check("notify add chat https://hunter2 --format slak", `format: given "slak": want generic, slack, teams, alertmanager`, command.ExitUsage)
	check("notify add chat https://hunter2 --format slack --secret-file "+empty, "it is empty: want a secret", command.ExitUsage)
	check("notify add chat https://hunter2 --secret-file /nonexistent", "/nonexistent", command.ExitUsage)
	check("notify test", "NAME (see lofamoctl notify list) is missing", command.ExitUsage)
	r.Server.Responses.Err = status.Error(codes.FailedPrecondition, "target chat: it answers with status 404")
	check("notify test chat", "notify test: target chat: it answers with status 404", command.ExitFailure)
	check("notify add chat https://hunter2", "notify add: target chat: it", command.ExitFailure)
	r.Server.Responses.Err = status.Error(codes.NotFound, `target "chta": there is none of this name: want chat`)
	check("notify test chta", "want chat", command.ExitUsage)
}

// telling is a policy that names a target.
const telling = `
apiVersion: lofamo.io/v1
kind: ResponsePolicy
metadata: {name: a}
spec:
  match: fault.component == "host"
  steps: [{name: tell, executor: webhook.notify, parameters: {target: chta}}]
`

// TestPolicyCheckAsksSupervisor: a supervisor that answers refuses an unknown target. Without one the check says what it has not checked.
func TestPolicyCheckAsksSupervisor(t *testing.T) {
	r := ctltest.Responding(t)
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(telling), 0o600); err != nil {
		t.Fatal(err)
	}
	refusal := "policy a: spec.steps[0].parameters.target: given chta: there is none of this name: want chat"
	r.Server.Responses.Checked = &lofamov1.CheckPoliciesResponse{Errors: []string{refusal}}
	if got := run(t, nil, r.Flags("policy", "check", "-f", file)...); got.code != command.ExitFailure ||
		!strings.Contains(got.stderr, refusal) || got.stdout != "" {
		t.Errorf("%+v: want exit code 1 and %q", got, refusal)
	}
	const unknown = "no supervisor has checked the policies: whether their targets exist is unknown"
	r.Server.Responses.Err = status.Error(codes.Unavailable, "no")
	for _, args := range [][]string{r.Flags("policy", "check", "-f", file), {"policy", "check", "-f", file, "--dir", t.TempDir()}} {
		if got := run(t, nil, args...); got.code != 0 || !strings.Contains(got.stderr, unknown) ||
			!strings.Contains(got.stdout, "a: right") {
			t.Errorf("%v: %+v: want exit code 0 and %q", args, got, unknown)
		}
	}
	if got := run(t, nil, "policy", "check", "--defaults", "--dir", t.TempDir()); got.code != 0 || got.stderr != "" {
		t.Errorf("policies without targets: %+v: want no warning", got)
	}
	if got := run(t, nil, "policy", "check", "-f", file, "--server", "a:1"); got.code != command.ExitUsage {
		t.Errorf("--server without keys: %+v: want a usage error", got)
	}
}
