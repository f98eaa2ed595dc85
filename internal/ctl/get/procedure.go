package get

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/pkg/fault"
)

// drain has the torus gone through the fault management procedure, and its links tested.
func drain(a *command.App, ctx context.Context, f diagnoseFlags, o command.Format) error {
	return a.WithOperator(ctx, func(ctx context.Context, s command.Session) error {
		p := procedureProgress{App: a, quiet: o.Structured()}
		report, err := s.StartProcedure(ctx, &lofamov1.StartProcedureRequest{
			Diagnose: true, Reason: f.reason, Node: f.starter, DrainTimeoutMs: uint32(f.timeout.Milliseconds()),
		}, p.show)
		if err != nil {
			return fmt.Errorf("diagnose: %w", command.Plain(err))
		}
		if err := printProcedure(a, o, report); err != nil {
			return err
		}
		if report.GetDiagnosis() == nil && !o.Structured() {
			a.Printf("\nNothing is known of the links: no node has said that it tested them\n")
		}
		if !report.GetClear() || report.GetDiagnosis() == nil {
			return command.FoundError{}
		}
		return foundIn(report.GetDiagnosis())
	})
}

// getProcedureCommand returns `lofamoctl get procedure`.
func getProcedureCommand(a *command.App) *cobra.Command {
	return lastReportCommand(a, "procedure", "The report of the last fault management procedure",
		`Prints the outcome of the last fault management procedure, whether a person began it with 'lofamoctl diagnose all
--drain', the supervisors by their policy, or a node by itself. The supervisors keep it until the next one, across
changes of leader.

One line for each state of the nodes: the number of nodes that were in it, the shortest and the longest duration (all
rounds of the drain together), the messages that they held when they left it, and the outcome. -o wide: one line for
each state of each node.`,
		func(ctx context.Context, s command.Session) (*lofamov1.ProcedureReport, error) {
			return s.GetProcedure(ctx)
		}, printProcedure)
}

// procedureProgress prints each state when it begins.
type procedureProgress struct {
	*command.App
	quiet bool
	state lofamov1.ProcedureState
	round uint32
	ended uint32
}

func (p *procedureProgress) show(at *lofamov1.ProcedureProgress) error {
	if p.quiet {
		return nil
	}
	if s := at.GetState(); s != lofamov1.ProcedureState_PROCEDURE_NORMAL && (s != p.state || at.GetRound() != p.round) {
		p.state, p.round = s, at.GetRound()
		text := procedureState(s)
		if isDrain(s) {
			text += ", round " + strconv.FormatUint(uint64(max(1, at.GetRound())), 10)
		}
		p.Printf("%s\n", text)
	}
	if n := at.GetEnded(); n != p.ended {
		p.ended = n
		p.Printf("%d of %d nodes are through\n", n, at.GetNodes())
	}
	return nil
}

func isDrain(s lofamov1.ProcedureState) bool {
	return s == lofamov1.ProcedureState_PROCEDURE_SYSTEM_DRAIN || s == lofamov1.ProcedureState_PROCEDURE_NETWORK_CLEAR
}

// procedureState is a state by the paper's name.
func procedureState(s lofamov1.ProcedureState) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(s.String(), "PROCEDURE_"), "_", " "))
}

// printProcedure prints a report: the overall result, then each state, then the diagnosis.
func printProcedure(a *command.App, f command.Format, r *lofamov1.ProcedureReport) error {
	if f.Structured() {
		return a.PrintMessage(f, r)
	}
	why := ""
	if r.GetReason() != "" {
		why = ": " + command.Printable(r.GetReason())
	}
	a.Printf("Procedure begun by %s at %s for %s%s\n", command.Dash(r.GetStarter()), command.Minute(a, r.GetStarted().AsTime()),
		r.GetSubject(), why)
	took := command.Duration(time.Duration(r.GetTookMs()) * time.Millisecond)
	if r.GetClear() {
		a.Printf("CLEAR  the torus was empty after %s of the drain; in %s\n", fault.Plural(r.GetRounds(), "round"), took)
	} else {
		a.Printf("NOT CLEAR  the drain timed out after %s; in %s\n", fault.Plural(r.GetRounds(), "round"), took)
	}
	if len(r.GetSilent()) > 0 {
		a.Printf("No answer from %s\n", strings.Join(r.GetSilent(), ", "))
	}
	if len(r.GetHolding()) > 0 {
		a.Printf("Messages were held at %s\n", strings.Join(r.GetHolding(), ", "))
	}
	for _, n := range r.GetNodes() {
		if n.GetError() != "" {
			a.Printf("%s took no part: %s\n", n.GetNode(), command.Printable(n.GetError()))
		}
	}
	rows := procedureRows(r)
	if f == command.FormatWide {
		rows = nodeSteps(r)
	}
	if len(rows) > 1 {
		if err := a.Table(rows); err != nil {
			return err
		}
	}
	if n := r.GetOmitted(); n > 0 {
		a.Printf("%d entries, nodes at which all was well first, are left out of the report that is kept\n", n)
	}
	if d := r.GetDiagnosis(); d != nil {
		a.Printf("\n")
		return printDiagnosis(a, f, d)
	}
	return nil
}

// stateSum is the result of one state over all nodes.
type stateSum struct {
	state       lofamov1.ProcedureState
	nodes, held uint32
	least, most uint32 // µs
}

// procedureRows returns the states, in the order of Figure 7.
func procedureRows(r *lofamov1.ProcedureReport) [][]string {
	var sums []stateSum
	for _, n := range r.GetNodes() {
		for _, s := range n.GetSteps() {
			i := slices.IndexFunc(sums, func(x stateSum) bool { return x.state == s.GetState() })
			if i < 0 {
				i = len(sums)
				sums = append(sums, stateSum{state: s.GetState(), least: s.GetTookUs()})
			}
			x := &sums[i]
			x.nodes++
			x.held += s.GetHeld()
			x.least, x.most = min(x.least, s.GetTookUs()), max(x.most, s.GetTookUs())
		}
	}
	slices.SortFunc(sums, func(a, b stateSum) int { return int(a.state) - int(b.state) })
	rows := [][]string{{"STATE", "NODES", "TOOK", "HELD", "FOUND"}}
	for _, x := range sums {
		rows = append(rows, []string{
			procedureState(x.state), fmt.Sprint(x.nodes), tookBetween(x.least, x.most), fmt.Sprint(x.held), command.Dash(foundInState(r, x)),
		})
	}
	return rows
}

func tookBetween(least, most uint32) string {
	from, to := command.Duration(time.Duration(least)*time.Microsecond), command.Duration(time.Duration(most)*time.Microsecond)
	if from == to {
		return from
	}
	return from + " to " + to
}

// foundInState describes the result of a state.
func foundInState(r *lofamov1.ProcedureReport, x stateSum) string {
	switch x.state {
	case lofamov1.ProcedureState_PROCEDURE_ERROR_DETECT_PROPAGATE:
		if n := len(r.GetSilent()); n > 0 {
			return fmt.Sprintf("%d silent", n)
		}
		return "all were notified"
	case lofamov1.ProcedureState_PROCEDURE_SYSTEM_DRAIN:
		if r.GetClear() {
			return "empty"
		}
		return fmt.Sprintf("not empty: messages held at %d, %d silent", len(r.GetHolding()), len(r.GetSilent()))
	case lofamov1.ProcedureState_PROCEDURE_NETWORK_CLEAR:
		return "not all were empty: another round, or the time-out"
	case lofamov1.ProcedureState_PROCEDURE_DROP_PACKETS:
		if x.held == 0 {
			return "nothing is stuck"
		}
		return fault.Plural(x.held, "message") + " stuck, kept where they are"
	case lofamov1.ProcedureState_PROCEDURE_DECISION:
		if r.GetDiagnosis() != nil || linksTested(r) {
			return "links are tested"
		}
		return "no links to test"
	case lofamov1.ProcedureState_PROCEDURE_DIAGNOSTICS:
		if d := r.GetDiagnosis(); d != nil {
			return fmt.Sprintf("%s, %d open, %d of %d links good", fault.Plural(len(d.GetFaults()), "fault"), len(d.GetOpen()), goodLinks(d),
				len(d.GetLinks()))
		}
		return "the nodes keep their findings"
	default:
	}
	return ""
}

// linksTested reports whether some node has tested its links, which nodes also do in procedures that they begin by
// themselves and that have no diagnosis.
func linksTested(r *lofamov1.ProcedureReport) bool {
	return slices.ContainsFunc(r.GetNodes(), func(n *lofamov1.ProcedureNode) bool {
		return slices.ContainsFunc(n.GetSteps(), func(s *lofamov1.ProcedureStep) bool {
			return s.GetState() == lofamov1.ProcedureState_PROCEDURE_DIAGNOSTICS
		})
	})
}

// nodeSteps returns the states of each node.
func nodeSteps(r *lofamov1.ProcedureReport) [][]string {
	rows := [][]string{{"NODE", "CLEAR", "STATE", "TOOK", "HELD"}}
	for _, n := range r.GetNodes() {
		empty := "no"
		if n.GetClear() {
			empty = "yes"
		}
		for _, s := range n.GetSteps() {
			rows = append(rows, []string{n.GetNode(), empty, procedureState(s.GetState()),
				command.Duration(time.Duration(s.GetTookUs()) * time.Microsecond), fmt.Sprint(s.GetHeld())})
		}
	}
	return rows
}
