package get

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/program"
	"github.com/lofamo/lofamo/pkg/fault"
)

// diagnoseFlags are the flags of a diagnosis.
type diagnoseFlags struct {
	rounds  uint32
	drain   bool
	timeout time.Duration
	starter string
	reason  string
}

const diagnoseHelp = `Makes nodes test links from both ends, and names the faults. It tests all links, the links of a node, or one link
(X+ to Z-). All traffic continues during the test.

Each end sends probes of several sizes and bit patterns to the neighbour's DNP half, through that to its host half, and
to the node behind it. The report counts lost, altered and late probes, and has their round-trip times. It names a dead
host half, a dead DNP half, or a dead link with its direction if the findings leave no other explanation. Otherwise it
names an open question. It also names nodes that did not answer.

With all and --drain, the torus goes through the fault management procedure first. All nodes hold new messages that can
wait, until no message is under way or --drain-timeout is over. Then they test their links, and continue. No message
is lost: a stuck one stays at its place, and the report counts it. Heartbeats, challenges and verdicts continue. The
command prints each state when the procedure enters it, then the result of each state, then the diagnosis. If you
interrupt the command, the procedure continues. Between two procedures is a pause of 30s, unless the supervisors'
configuration changes it.

Each further round (--rounds) takes a second, and finds smaller losses. One diagnosis or procedure runs at a time. Roles
operator and supervisor may start one; in a local cluster the command uses the operator's certificate. 'lofamoctl get
diagnosis' and 'lofamoctl get procedure' print the last reports.

Exit codes: 0 nothing is wrong, 1 there is no report, 2 a usage error, 3 the report names a fault, an open question, a
node that did not answer or a link that is not good, or with --drain a torus that was not empty or untested links.`

// DiagnoseCommand returns `lofamoctl diagnose`.
func DiagnoseCommand(a *command.App) *cobra.Command {
	var f diagnoseFlags
	cmd := &cobra.Command{
		Use:   "diagnose all|NODE [LINK]",
		Short: "Make nodes test their links now, and name the faults",
		Long:  diagnoseHelp,
		Example: "  lofamoctl diagnose all\n  lofamoctl diagnose n1-0-1\n  lofamoctl diagnose 1,0,1 X+ --rounds 5\n" +
			"  lofamoctl diagnose all -o json\n" +
			"  lofamoctl diagnose all --drain --reason 'a job loses messages'",
		Args: command.Between(1, "all, or NODE (an id such as n1-0-1, or coordinates such as 1,0,1)",
			"LINK (X+, X-, Y+, Y-, Z+ or Z-)"),
		ValidArgsFunction: a.CompleteFirstNode,
	}
	f.bind(cmd)
	o := command.AllFormats(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.check(cmd, args); err != nil {
			return err
		}
		if f.drain {
			return drain(a, cmd.Context(), f, o.Format)
		}
		req := &lofamov1.DiagnoseRequest{Rounds: f.rounds}
		if args[0] != "all" {
			req.Node = args[0]
		}
		if len(args) == 2 {
			req.Link = strings.TrimPrefix(args[1], "link/")
		}
		return a.WithOperator(cmd.Context(), func(ctx context.Context, s command.Session) error {
			p := diagnosisProgress{App: a}
			report, err := s.Diagnose(ctx, req, p.show)
			p.end()
			if err != nil {
				return fmt.Errorf("diagnose: %w", command.Plain(err))
			}
			if err := printDiagnosis(a, o.Format, report); err != nil {
				return err
			}
			return foundIn(report)
		})
	}
	return cmd
}

func (f *diagnoseFlags) bind(cmd *cobra.Command) {
	cmd.Flags().Uint32Var(&f.rounds, "rounds", 1, "how often everything is tested, 1 to 10: one takes a second")
	cmd.Flags().BoolVar(&f.drain, "drain", false, "with all: drain the whole torus first, by the fault management procedure")
	program.DurationVar(cmd.Flags(), &f.timeout, "drain-timeout", time.Second, "with --drain: time limit until the torus is empty, 10ms to 1m")
	cmd.Flags().StringVar(&f.starter, "starter", "", "with --drain: the NODE that begins it (default a healthy one)")
	cmd.Flags().StringVar(&f.reason, "reason", "", "with --drain: the reason, at most 120 bytes, for the report and the history")
}

// check rejects contradicting flags.
func (f diagnoseFlags) check(cmd *cobra.Command, args []string) error {
	switch {
	case f.rounds < 1 || f.rounds > 10:
		return command.Usagef("--rounds %d: want 1 to 10", f.rounds)
	case len(args) == 2 && args[0] == "all":
		return command.Usagef("all %s: a link is one of a node: want NODE LINK", args[1])
	case f.drain && args[0] != "all":
		return command.Usagef("%s --drain: the whole torus is drained: want all --drain", strings.Join(args, " "))
	case f.drain && f.rounds != 1:
		return command.Usagef("--rounds %d --drain: want 1: the torus is not held for longer", f.rounds)
	case f.timeout < 10*time.Millisecond || f.timeout > time.Minute:
		return command.Usagef("--drain-timeout %s: want 10ms to 1m", f.timeout)
	case len(f.reason) > 120:
		return command.Usagef("--reason of %d bytes: want at most 120", len(f.reason))
	}
	for _, name := range []string{"drain-timeout", "starter", "reason"} {
		if !f.drain && cmd.Flags().Changed(name) {
			return command.Usagef("--%s: want it with --drain", name)
		}
	}
	return nil
}

// foundIn returns the error that ends a command whose report shows a fault.
func foundIn(r *lofamov1.DiagnosisReport) error {
	if len(r.GetFaults())+len(r.GetOpen())+len(r.GetSilent()) > 0 || goodLinks(r) < len(r.GetLinks()) {
		return command.FoundError{}
	}
	return nil
}

// goodLinks counts them.
func goodLinks(r *lofamov1.DiagnosisReport) (n int) {
	for _, l := range r.GetLinks() {
		if l.GetVerdict() == lofamov1.LinkVerdict_LINK_GOOD {
			n++
		}
	}
	return n
}

// getDiagnosisCommand returns `lofamoctl get diagnosis`.
func getDiagnosisCommand(a *command.App) *cobra.Command {
	return lastReportCommand(a, "diagnosis", "The report of the last diagnosis",
		`Prints the report of the last diagnosis, including that of a fault management procedure; 'lofamoctl diagnose' makes
one. The supervisors keep the report until the next one, across changes of leader.`,
		func(ctx context.Context, s command.Session) (*lofamov1.DiagnosisReport, error) {
			return s.GetDiagnosis(ctx)
		}, printDiagnosis)
}

// lastReportCommand returns a command under `lofamoctl get` that prints the report of the last one of something.
func lastReportCommand[M proto.Message](a *command.App, name, short, long string, ask func(context.Context, command.Session) (M, error),
	text func(*command.App, command.Format, M) error) *cobra.Command {
	cmd := &cobra.Command{
		Use: name, Short: short, Long: long,
		Example: "  lofamoctl get " + name + "\n  lofamoctl get " + name + " -o wide",
		Args:    command.Exactly(),
	}
	o := command.GetFormats(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return command.Query(a, cmd, "get "+name, o, ask, func(report M) error { return text(a, o.Format, report) })
	}
	return cmd
}

// diagnosisProgress rewrites one line on a terminal.
type diagnosisProgress struct {
	*command.App
	width int
}

func (p *diagnosisProgress) show(at *lofamov1.DiagnosisProgress) error {
	if !p.Env.ErrTerminal {
		return nil
	}
	line := fmt.Sprintf("%d of %d nodes have said everything", at.GetAnswered(), at.GetNodes())
	p.Warnf("\r%-*s", p.width, line)
	p.width = len(line)
	return nil
}

func (p *diagnosisProgress) end() {
	if p.width > 0 {
		p.Warnf("\r%-*s\r", p.width, "")
	}
}

// printDiagnosis prints a report: the faults first, then bad links; wide: all links with their numbers.
func printDiagnosis(a *command.App, f command.Format, r *lofamov1.DiagnosisReport) error {
	if f.Structured() {
		return a.PrintMessage(f, r)
	}
	a.Printf("Diagnosis of %s at %s by %s: %s, %s, in %s\n", r.GetScope(), command.Minute(a, r.GetStarted().AsTime()),
		r.GetSubject(), fault.Plural(int(r.GetNodes()), "node"), fault.Plural(len(r.GetLinks()), "link"),
		command.Duration(time.Duration(r.GetTookMs())*time.Millisecond))
	if len(r.GetSilent()) > 0 {
		a.Printf("No answer from %s\n", strings.Join(r.GetSilent(), ", "))
	}
	for _, x := range r.GetFaults() {
		a.Printf("FAULT  %s: %s\n", faultName(x), x.GetExplanation())
	}
	for _, x := range r.GetOpen() {
		a.Printf("OPEN   node %s: %s\n", x.GetNode(), x.GetExplanation())
	}
	rows := [][]string{{"LINK", "TO", "VERDICT", "LOST", "ALTERED", "DAMAGED", "LATE", "MEDIAN", "MAX", "NOTES"}}
	good := goodLinks(r)
	for _, l := range r.GetLinks() {
		if l.GetVerdict() != lofamov1.LinkVerdict_LINK_GOOD || f == command.FormatWide {
			rows = append(rows, linkRow(l))
		}
	}
	if len(rows) > 1 {
		if err := a.Table(rows); err != nil {
			return err
		}
	}
	if foundIn(r) == nil {
		a.Printf("Nothing is wrong: all links are good\n")
	} else {
		a.Printf("%d of %d links are good\n", good, len(r.GetLinks()))
	}
	if n := r.GetOmitted(); n > 0 {
		a.Printf("%d entries, good links first, are left out of the report that is kept\n", n)
	}
	return nil
}

// faultName names a faulty part.
func faultName(x *lofamov1.DiagnosisFault) string {
	switch x.GetPart() {
	case lofamov1.DiagnosisPart_PART_HOST_HALF:
		return "host half of " + x.GetNode()
	case lofamov1.DiagnosisPart_PART_DNP_HALF:
		return "DNP half of " + x.GetNode()
	case lofamov1.DiagnosisPart_PART_NODE:
		return "node " + x.GetNode()
	case lofamov1.DiagnosisPart_PART_LINK:
		return fmt.Sprintf("link %s %s to %s", x.GetNode(), x.GetDirection(), x.GetPeer())
	default:
		return "something of " + x.GetNode() // of a later version
	}
}

// linkRow shows the numbers of both ends, as "here/there" if there are two.
func linkRow(l *lofamov1.DiagnosedLink) []string {
	of := func(value func(f *lofamov1.LinkFinding) string) string {
		var out []string
		for _, f := range []*lofamov1.LinkFinding{l.GetHere(), l.GetThere()} {
			if f != nil {
				out = append(out, value(f))
			} else {
				out = append(out, "-")
			}
		}
		return strings.Join(out, " / ")
	}
	us := func(n uint32) string { return command.Duration(time.Duration(n) * time.Microsecond) }
	verdict := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(l.GetVerdict().String(), "LINK_"), "_", " "))
	return []string{
		l.GetNode() + " " + l.GetDirection(), l.GetPeer(), verdict,
		of(func(f *lofamov1.LinkFinding) string {
			return fmt.Sprintf("%d of %d", f.GetDnp().GetSent()-f.GetDnp().GetAnswered(), f.GetDnp().GetSent())
		}),
		of(func(f *lofamov1.LinkFinding) string {
			return fmt.Sprint(f.GetDnp().GetAltered() + f.GetHost().GetAltered() + f.GetThrough().GetAltered())
		}),
		of(func(f *lofamov1.LinkFinding) string { return fmt.Sprint(f.GetDamaged()) }),
		of(func(f *lofamov1.LinkFinding) string {
			return fmt.Sprint(f.GetDnp().GetLate() + f.GetHost().GetLate() + f.GetThrough().GetLate())
		}),
		of(func(f *lofamov1.LinkFinding) string { return us(f.GetDnp().GetMedianUs()) }),
		of(func(f *lofamov1.LinkFinding) string { return us(f.GetDnp().GetMaxUs()) }),
		command.Dash(l.GetExplanation()),
	}
}
