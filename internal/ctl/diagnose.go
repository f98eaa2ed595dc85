package ctl

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

func (a *app) diagnoseCommand() *cobra.Command {
	var rounds uint32
	cmd := &cobra.Command{
		Use:   "diagnose all|NODE [LINK]",
		Short: "Have nodes test their links now, and say what is at fault",
		Long: `Has the nodes test their links, from both ends, and says what follows: all links, those of a node,
or one (X+ to Z-). It is an on-line test: everything goes on meanwhile.

Each end sends probes of several sizes and bit patterns to the neighbour's DNP half, to its host
half through that, and through it to the node behind. Counted are those that were lost, altered or
late, and how long they took. A dead host half, a dead DNP half and a dead link (and which way of it)
are told apart where the findings leave no other explanation; what stays open is said to be open.
Nodes that did not answer are named.

More --rounds find smaller losses, a second each. One diagnosis runs at a time. Roles operator and
supervisor may make one; in a local cluster the operator's certificate is used. The supervisor that
leads keeps the last report: lofamoctl get diagnosis.

It ends with status 0 when there is a report, whatever is in it.`,
		Example:           "  lofamoctl diagnose all\n  lofamoctl diagnose n1-0-1\n  lofamoctl diagnose 1,0,1 X+ --rounds 5\n  lofamoctl diagnose all -o json",
		Args:              between(1, "all, or NODE (an id such as n1-0-1, or coordinates such as 1,0,1)", "LINK (X+, X-, Y+, Y-, Z+ or Z-)"),
		ValidArgsFunction: a.completeFirstNode,
	}
	cmd.Flags().Uint32Var(&rounds, "rounds", 1, "how often everything is tested, 1 to 10: one takes a second")
	o := allFormats(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if rounds < 1 || rounds > 10 {
			return usagef("--rounds %d: want 1 to 10", rounds)
		}
		req := &lofamov1.DiagnoseRequest{Rounds: rounds}
		if args[0] != "all" {
			req.Node = args[0]
		}
		if len(args) == 2 {
			if req.GetNode() == "" {
				return usagef("all %s: a link is one of a node: want NODE LINK", args[1])
			}
			req.Link = strings.TrimPrefix(args[1], "link/")
		}
		return a.withOperator(cmd.Context(), func(ctx context.Context, s session) error {
			p := diagnosisProgress{app: a}
			report, err := s.Diagnose(ctx, req, p.show)
			p.end()
			if err != nil {
				return fmt.Errorf("diagnose: %w", plain(err))
			}
			return a.printDiagnosis(o.format, report)
		})
	}
	return cmd
}

func (a *app) getDiagnosisCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diagnosis",
		Short: "The report of the last diagnosis",
		Long: `Prints the report of the last diagnosis that the leading supervisor has made; lofamoctl diagnose makes one.
A supervisor that comes to lead has none.`,
		Example: "  lofamoctl get diagnosis\n  lofamoctl get diagnosis -o wide",
		Args:    exactly(),
	}
	o := allFormats(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withClient(cmd.Context(), func(ctx context.Context, s session) error {
			report, err := s.GetDiagnosis(ctx)
			if err != nil {
				return fmt.Errorf("get diagnosis: %w", plain(err))
			}
			return a.printDiagnosis(o.format, report)
		})
	}
	return cmd
}

// diagnosisProgress rewrites one line on a terminal.
type diagnosisProgress struct {
	*app
	width int
}

func (p *diagnosisProgress) show(at *lofamov1.DiagnosisProgress) error {
	if !p.env.ErrTerminal {
		return nil
	}
	line := fmt.Sprintf("%d of %d nodes have said everything", at.GetAnswered(), at.GetNodes())
	p.warnf("\r%-*s", p.width, line)
	p.width = len(line)
	return nil
}

func (p *diagnosisProgress) end() {
	if p.width > 0 {
		p.warnf("\r%-*s\r", p.width, "")
	}
}

// printDiagnosis prints a report: what is at fault first, then the links that are not good; wide: all links with their numbers.
func (a *app) printDiagnosis(f format, r *lofamov1.DiagnosisReport) error {
	if f == formatJSON || f == formatYAML {
		return a.printMessage(f, r)
	}
	a.printf("Diagnosis of %s at %s by %s: %d nodes, %d links, in %s\n", r.GetScope(), a.minute(r.GetStarted().AsTime()), r.GetSubject(),
		r.GetNodes(), len(r.GetLinks()), duration(time.Duration(r.GetTookMs())*time.Millisecond))
	if len(r.GetSilent()) > 0 {
		a.printf("No answer from %s\n", strings.Join(r.GetSilent(), ", "))
	}
	for _, x := range r.GetFaults() {
		a.printf("FAULT  %s: %s\n", faultName(x), x.GetExplanation())
	}
	for _, x := range r.GetOpen() {
		a.printf("OPEN   node %s: %s\n", x.GetNode(), x.GetExplanation())
	}
	rows := [][]string{{"LINK", "TO", "VERDICT", "LOST", "ALTERED", "DAMAGED", "LATE", "MEDIAN", "MAX", "NOTES"}}
	good := 0
	for _, l := range r.GetLinks() {
		if l.GetVerdict() == lofamov1.LinkVerdict_LINK_GOOD {
			if good++; f != formatWide {
				continue
			}
		}
		rows = append(rows, linkRow(l))
	}
	if len(rows) > 1 {
		if err := table(a.env.Stdout, rows); err != nil {
			return err
		}
	}
	if good == len(r.GetLinks()) && len(r.GetFaults())+len(r.GetOpen())+len(r.GetSilent()) == 0 {
		a.printf("Nothing is wrong: all links are good\n")
	} else {
		a.printf("%d of %d links are good\n", good, len(r.GetLinks()))
	}
	return nil
}

// faultName is what is at fault, in words.
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

// linkRow shows both ends' numbers, as "here/there" where there are two.
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
	us := func(n uint32) string { return duration(time.Duration(n) * time.Microsecond) }
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
		l.GetExplanation(),
	}
}
