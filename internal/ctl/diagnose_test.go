package ctl

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/ctl/ctltest"
)

func sampleTest(answered uint32) *lofamov1.DiagnosisTest {
	return &lofamov1.DiagnosisTest{Sent: 36, Answered: answered, MinUs: 100, MedianUs: 210, MaxUs: 4200}
}

func sampleReport() *lofamov1.DiagnosisReport {
	good := func() *lofamov1.LinkFinding { return &lofamov1.LinkFinding{Direction: 1, Dnp: sampleTest(36)} }
	return &lofamov1.DiagnosisReport{
		Started: ctltest.Ago(time.Minute), TookMs: 1234, Scope: "all", Subject: "operator/o", Nodes: 3, Silent: []string{"n2-0-0"},
		Supervisor: "sup-1",
		Faults: []*lofamov1.DiagnosisFault{
			{Part: lofamov1.DiagnosisPart_PART_HOST_HALF, Node: "n0-0-0", Explanation: "it does not answer"},
			{Part: lofamov1.DiagnosisPart_PART_LINK, Node: "n0-0-0", Direction: "Y+", Peer: "n0-1-0", OutDead: true,
				Explanation: "dead from 0,0,0 to 0,1,0"},
		},
		Open: []*lofamov1.DiagnosisQuestion{{Node: "n2-0-0", Explanation: "too few neighbours can tell"}},
		Links: []*lofamov1.DiagnosedLink{
			{Node: "n0-0-0", Direction: "X+", Peer: "n1-0-0", Verdict: lofamov1.LinkVerdict_LINK_GOOD, Here: good(), There: good()},
			{Node: "n0-0-0", Direction: "Y+", Peer: "n0-1-0", Verdict: lofamov1.LinkVerdict_LINK_DEAD,
				Explanation: "dead from 0,0,0 to 0,1,0", Here: &lofamov1.LinkFinding{Direction: 3, Dnp: &lofamov1.DiagnosisTest{Sent: 36}}},
			{Node: "n1-0-0", Direction: "X+", Peer: "n2-0-0", Verdict: lofamov1.LinkVerdict_LINK_NOTHING_ANSWERS,
				Explanation: "nobody else who could tell was heard", Here: &lofamov1.LinkFinding{Direction: 1, Dnp: sampleTest(0), Damaged: 3}},
		},
	}
}

func TestDiagnose(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Harmed(t))
	m := &r.Server.Manage
	m.Responses = []*lofamov1.DiagnoseResponse{
		{Progress: &lofamov1.DiagnosisProgress{Nodes: 3}}, {Progress: &lofamov1.DiagnosisProgress{Nodes: 3, Answered: 2,
			Heard: 2}}, {Report: sampleReport()},
	}
	m.Last = sampleReport()
	for name, args := range map[string][]string{
		"diagnose.txt": {"diagnose", "all"}, "diagnose-wide.txt": {"diagnose", "all", "-o", "wide"}, "diagnose.json": {"get", "diagnosis",
			"-o", "json"},
	} {
		got, code := run(t, nil, r.Flags(args...)...), command.ExitOK
		if args[0] == "diagnose" {
			code = command.ExitFound
		}
		if got.code != code || got.stderr != "" {
			t.Errorf("%v: code %d, %s", args, got.code, got.stderr)
		}
		ctltest.Golden(t, name, got.stdout)
	}
	if got, want := run(t, nil, r.Flags("get", "diagnosis")...).stdout, run(t, nil, r.Flags("diagnose", "all")...).stdout; got != want {
		t.Errorf("the last report is shown as\n%s, want\n%s", got, want)
	}
	m.Asked = nil
	for _, args := range [][]string{{"diagnose", "1,0,1"}, {"diagnose", "n1-0-1", "X+"}, {"diagnose", "n1-0-1", "link/Z-", "--rounds", "3"}} {
		if got := run(t, nil, r.Flags(args...)...); got.code != command.ExitFound {
			t.Errorf("%v: %d, %s", args, got.code, got.stderr)
		}
	}
	if got := strings.Join(m.Asked, ";"); got != "1,0,1 ;n1-0-1 X+;n1-0-1 Z-" {
		t.Errorf("asked for %q", got)
	}
}

// A report without faults says so.
func TestDiagnoseNothing(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Harmed(t))
	report := sampleReport()
	report.Faults, report.Open, report.Silent, report.Links = nil, nil, nil, report.GetLinks()[:1]
	r.Server.Manage.Responses = []*lofamov1.DiagnoseResponse{{Report: report}}
	if got := run(t, nil, r.Flags("diagnose", "all")...); got.code != 0 ||
		!strings.Contains(got.stdout, "Nothing is wrong: all links are good") || strings.Contains(got.stdout, "VERDICT") {
		t.Errorf("%d: %s%s", got.code, got.stdout, got.stderr)
	}
}

func TestDiagnoseRefused(t *testing.T) {
	for _, tc := range []struct {
		args []string
		err  error
		want string
		code int
	}{
		{[]string{"diagnose"}, nil, "all, or NODE (an id", command.ExitUsage},
		{[]string{"diagnose", "all", "X+"}, nil, "a link is one of a node", command.ExitUsage},
		{[]string{"diagnose", "all", "--rounds", "0"}, nil, "--rounds 0: want 1 to 10", command.ExitUsage},
		{[]string{"diagnose", "n1", "--drain"}, nil, "n1 --drain: the whole torus is drained: want all --drain", command.ExitUsage},
		{[]string{"diagnose", "all", "--drain", "--rounds", "2"}, nil, "--rounds 2 --drain: want 1", command.ExitUsage},
		{[]string{"diagnose", "all", "--drain", "--drain-timeout", "2m"}, nil, "--drain-timeout 2m0s: want 10ms to 1m", command.ExitUsage},
		{[]string{"diagnose", "all", "--drain", "--reason", strings.Repeat("x", 121)}, nil, "--reason of 121 bytes: want at most 120",
			command.ExitUsage},
		{[]string{"diagnose", "all", "--starter", "n1"}, nil, "--starter: want it with --drain", command.ExitUsage},
		{[]string{"diagnose", "all", "--drain"}, status.Error(codes.ResourceExhausted,
			"the last procedure ended too short a time ago: try again in 18s"), "try again in 18s", 1},
		{[]string{"diagnose", "all", "--drain"}, nil, "without a report", 1},
		{[]string{"get", "procedure"}, status.Error(codes.NotFound, "no procedure was gone through"), "no procedure was gone through",
			command.ExitUsage},
		{[]string{"diagnose", "all"}, status.Error(codes.ResourceExhausted, "another diagnosis runs: try again in some seconds"),
			"another diagnosis runs", 1},
		{[]string{"diagnose", "n9"}, status.Error(codes.NotFound, "node n9 is not known"), "node n9 is not known", command.ExitUsage},
		{[]string{"diagnose", "all"}, nil, "without a report", 1},
		{[]string{"get", "diagnosis"}, status.Error(codes.NotFound, "no diagnosis was made"), "no diagnosis was made", command.ExitUsage},
	} {
		r := ctltest.StartRemote(t, ctltest.Harmed(t))
		r.Server.Manage.Err = tc.err
		if got := run(t, nil, r.Flags(tc.args...)...); got.code != tc.code || !strings.Contains(got.stderr, tc.want) {
			t.Errorf("%v: code %d: %s: want code %d, %s", tc.args, got.code, got.stderr, tc.code, tc.want)
		}
	}
}

// On a terminal, one line shows the progress, and disappears at the end.
func TestDiagnoseProgress(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Harmed(t))
	r.Server.Manage.Responses = []*lofamov1.DiagnoseResponse{{Progress: &lofamov1.DiagnosisProgress{Nodes: 8, Answered: 3}},
		{Report: sampleReport()}}
	var out, errOut bytes.Buffer
	code := Run(context.Background(), r.Flags("diagnose", "all"), command.Env{
		Stdout: &out, Stderr: &errOut, ErrTerminal: true, Now: func() time.Time { return ctltest.Now }, Getenv: func(string) string { return "" },
		Location: time.UTC, TryTimeout: tryTimeout,
	})
	if want := "\r3 of 8 nodes have said everything\r                                 \r"; code != command.ExitFound ||
		errOut.String() != want {
		t.Errorf("code %d: %q, want %q", code, errOut.String(), want)
	}
}
