package ctl

import (
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/ctl/ctltest"
)

// sampleProcedure is a procedure that was not clear, of four nodes: one is silent, and one took no part.
func sampleProcedure() *lofamov1.ProcedureReport {
	step := func(s lofamov1.ProcedureState, us, held uint32) *lofamov1.ProcedureStep {
		return &lofamov1.ProcedureStep{State: s, TookUs: us, Held: held}
	}
	return &lofamov1.ProcedureReport{
		Started: ctltest.Ago(time.Minute), TookMs: 3210, Subject: "operator/o", Reason: "a job loses messages", Wave: 7, Starter: "n0-0-0",
		Silent: []string{"n3-0-0"}, Holding: []string{"n1-0-0"},
		Rounds: 4, Supervisor: "sup-1", Diagnosis: sampleReport(),
		Nodes: []*lofamov1.ProcedureNode{
			{Node: "n0-0-0", Steps: []*lofamov1.ProcedureStep{
				step(lofamov1.ProcedureState_PROCEDURE_ERROR_DETECT_PROPAGATE, 300_000, 0), step(lofamov1.ProcedureState_PROCEDURE_SYSTEM_DRAIN,
					900_000, 0),
				step(lofamov1.ProcedureState_PROCEDURE_NETWORK_CLEAR, 120_000, 0), step(lofamov1.ProcedureState_PROCEDURE_DROP_PACKETS, 250_000, 0),
				step(lofamov1.ProcedureState_PROCEDURE_DECISION, 1_000, 0), step(lofamov1.ProcedureState_PROCEDURE_DIAGNOSTICS, 1_300_000, 0),
			}},
			{Node: "n1-0-0", Held: 2, Steps: []*lofamov1.ProcedureStep{
				step(lofamov1.ProcedureState_PROCEDURE_ERROR_DETECT_PROPAGATE, 280_000, 3), step(lofamov1.ProcedureState_PROCEDURE_SYSTEM_DRAIN,
					910_000, 2),
				step(lofamov1.ProcedureState_PROCEDURE_DROP_PACKETS, 250_000, 2), step(lofamov1.ProcedureState_PROCEDURE_DIAGNOSTICS, 1_290_000, 2),
			}},
			{Node: "n2-0-0", Error: "it has heard of no such procedure"},
		},
	}
}

func TestProcedureCommands(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Harmed(t))
	m := &r.Server.Manage
	at := func(s lofamov1.ProcedureState, round, ended uint32) *lofamov1.StartProcedureResponse {
		return &lofamov1.StartProcedureResponse{Progress: &lofamov1.ProcedureProgress{State: s, Round: round, Nodes: 4, Ended: ended}}
	}
	m.Procedure = []*lofamov1.StartProcedureResponse{
		at(lofamov1.ProcedureState_PROCEDURE_ERROR_DETECT_PROPAGATE, 0, 0), at(lofamov1.ProcedureState_PROCEDURE_SYSTEM_DRAIN, 1, 0),
		at(lofamov1.ProcedureState_PROCEDURE_NETWORK_CLEAR, 1, 0), at(lofamov1.ProcedureState_PROCEDURE_SYSTEM_DRAIN, 2, 0),
		at(lofamov1.ProcedureState_PROCEDURE_DIAGNOSTICS, 4, 0), at(lofamov1.ProcedureState_PROCEDURE_NORMAL, 4,
			1), at(lofamov1.ProcedureState_PROCEDURE_NORMAL, 4, 3),
		{Report: sampleProcedure()},
	}
	m.LastOver = sampleProcedure()
	for name, args := range map[string][]string{
		"drain.txt": {"diagnose", "all", "--drain", "--reason", "a job loses messages", "--starter", "0,0,0", "--drain-timeout",
			"250ms"}, "drain.json": {"diagnose", "all", "--drain", "-o", "json"},
		"procedure.txt": {"get", "procedure"}, "procedure-wide.txt": {"get", "procedure", "-o", "wide"}, "procedure.yaml": {"get",
			"procedure", "-o", "yaml"},
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
	asked := strings.Join(m.Asked, ";")
	if !strings.Contains(asked, "drain true 0,0,0 250 a job loses messages") || !strings.Contains(asked, "drain true  1000 ") {
		t.Errorf("asked for %q", asked)
	}
}

// The output and the exit code show that all went well.
func TestProcedureClear(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Harmed(t))
	report := sampleProcedure()
	report.Clear, report.Silent, report.Holding, report.Rounds, report.Reason = true, nil, nil, 1, ""
	for _, n := range report.GetNodes()[:2] {
		n.Clear, n.Held = true, 0
	}
	report.Nodes = report.GetNodes()[:2]
	d := report.GetDiagnosis()
	d.Faults, d.Open, d.Silent, d.Links = nil, nil, nil, d.GetLinks()[:1]
	r.Server.Manage.Procedure = []*lofamov1.StartProcedureResponse{{Report: report}}
	got := run(t, nil, r.Flags("diagnose", "all", "--drain")...)
	if got.code != command.ExitOK || !strings.Contains(got.stdout, "CLEAR  the torus was empty after 1 round of the drain") ||
		!strings.Contains(got.stdout, "Nothing is wrong: all links are good") {
		t.Errorf("%d: %s%s", got.code, got.stdout, got.stderr)
	}
	report.Clear = false
	if got := run(t, nil, r.Flags("diagnose", "all", "--drain")...); got.code != command.ExitFound {
		t.Errorf("not clear: %d", got.code)
	}
	report.Clear, report.Diagnosis = true, nil
	if got := run(t, nil, r.Flags("diagnose", "all", "--drain")...); got.code != command.ExitFound ||
		!strings.Contains(got.stdout, "no node has said that it tested them") {
		t.Errorf("links that nobody tested: %d: %s", got.code, got.stdout)
	}
	report.Omitted, report.Diagnosis = 7, d
	d.Faults = []*lofamov1.DiagnosisFault{{Node: "n0-0-0", Part: lofamov1.DiagnosisPart_PART_NODE}}
	if got := run(t, nil, r.Flags("diagnose", "all", "--drain")...); got.code != command.ExitFound ||
		!strings.Contains(got.stdout, "7 entries, nodes at which all was well first, are left out") {
		t.Errorf("a fault: %d: %s", got.code, got.stdout)
	}
}

// A procedure that a node began by itself has no diagnosis, although it tests links.
func TestProcedureOfNode(t *testing.T) {
	r := ctltest.StartRemote(t, ctltest.Harmed(t))
	report := sampleProcedure()
	report.Subject, report.Diagnosis = "node/n0-0-0", nil
	r.Server.Manage.LastOver = report
	got := run(t, nil, r.Flags("get", "procedure")...)
	if got.code != command.ExitOK || !strings.Contains(got.stdout, "links are tested") ||
		!strings.Contains(got.stdout, "the nodes keep their findings") {
		t.Errorf("%d: %s%s", got.code, got.stdout, got.stderr)
	}
}
