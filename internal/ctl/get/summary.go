package get

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/pkg/fault"
)

// SummaryCommand returns `lofamoctl summary`.
func SummaryCommand(a *command.App) *cobra.Command {
	var by []string
	var labels string
	cmd := &cobra.Command{
		Use:   "summary",
		Short: "Counts of nodes and links by state",
		Long: `Prints the numbers of nodes and link ends in each state: in all, and by the properties that --by names: label/KEY for
the values of a label, dimension/X, Y or Z for the planes of the torus, region for the regions of a parent.`,
		Example: "  lofamoctl summary\n  lofamoctl summary --by label/rack,dimension/Z\n  lofamoctl summary -l power=a -o json",
		Args:    command.Exactly(),
	}
	o := command.AddOutputFlag(cmd, command.FormatTable, command.FormatJSON, command.FormatYAML)
	cmd.Flags().StringSliceVar(&by, "by", nil, "also count by these: label/KEY, dimension/X, dimension/Y, dimension/Z, region "+
		"(comma-separated)")
	cmd.Flags().StringVarP(&labels, "selector", "l", "", "only nodes with these labels, such as rack=r7,!spare")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return command.Query(a, cmd, "summary", o, func(ctx context.Context, s command.Session) (*lofamov1.GetSummaryResponse, error) {
			return s.GetSummary(ctx, &lofamov1.GetSummaryRequest{By: by, LabelSelector: labels})
		}, func(resp *lofamov1.GetSummaryResponse) error {
			return printSummary(a, resp)
		})
	}
	return cmd
}

func printSummary(a *command.App, s *lofamov1.GetSummaryResponse) error {
	rows := [][]string{{"", "TOTAL", "NORMAL", "SICK", "FAILED", "UNKNOWN"}, countRow("nodes", s.GetNodes()),
		countRow("link ends", s.GetLinks())}
	for _, t := range s.GetBy() {
		rows = append(rows, countRow(t.GetKey()+"="+t.GetValue(), t.GetNodes()))
	}
	if err := a.Table(rows); err != nil {
		return err
	}
	a.Printf("\n%s, %s, %s under maintenance; revision %d\n",
		fault.Plural(int(s.GetGroups()), "group fault"), fault.Plural(int(s.GetWarnings()),
			"warning"), fault.Plural(int(s.GetMaintenance()), "node"), s.GetRevision())
	return nil
}

func countRow(name string, c *lofamov1.Count) []string {
	row := []string{name}
	for _, n := range []uint32{c.GetNormal() + c.GetSick() + c.GetFailed() + c.GetUnknown(), c.GetNormal(), c.GetSick(), c.GetFailed(),
		c.GetUnknown()} {
		row = append(row, strconv.FormatUint(uint64(n), 10))
	}
	return row
}
