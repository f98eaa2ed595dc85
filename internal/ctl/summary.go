package ctl

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

func (a *app) summaryCommand() *cobra.Command {
	var by []string
	var labels string
	cmd := &cobra.Command{
		Use:   "summary",
		Short: "How many nodes and links are in which state",
		Long: `Prints how many nodes and link ends are in which state, of the whole and by what --by names: label/KEY for the
values of a label, dimension/X, Y or Z for the planes of the torus, region for the regions of a parent.`,
		Example: "  lofamoctl summary\n  lofamoctl summary --by label/rack,dimension/Z\n  lofamoctl summary -l power=a -o json",
		Args:    exactly(),
	}
	o := addOutputFlag(cmd, formatTable, formatJSON, formatYAML)
	cmd.Flags().StringSliceVar(&by, "by", nil, "also count by these: label/KEY, dimension/X, dimension/Y, dimension/Z, region (comma-separated)")
	cmd.Flags().StringVarP(&labels, "selector", "l", "", "only nodes with such labels, as rack=r7,!spare")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.withClient(cmd.Context(), func(ctx context.Context, s session) error {
			resp, err := s.GetSummary(ctx, &lofamov1.GetSummaryRequest{By: by, LabelSelector: labels})
			if err != nil {
				return fmt.Errorf("summary: %w", plain(err))
			}
			a.warnCluster(resp.GetCluster())
			if o.format != formatTable {
				return a.printMessage(o.format, resp)
			}
			return a.printSummary(resp)
		})
	}
	return cmd
}

func (a *app) printSummary(s *lofamov1.GetSummaryResponse) error {
	rows := [][]string{{"", "TOTAL", "NORMAL", "SICK", "FAILED", "UNKNOWN"}, countRow("nodes", s.GetNodes()), countRow("link ends", s.GetLinks())}
	for _, t := range s.GetBy() {
		rows = append(rows, countRow(t.GetKey()+"="+t.GetValue(), t.GetNodes()))
	}
	if err := table(a.env.Stdout, rows); err != nil {
		return err
	}
	a.printf("\n%s, %s, %s under maintenance; revision %d\n",
		plural(int(s.GetGroups()), "group fault"), plural(int(s.GetWarnings()), "warning"), plural(int(s.GetMaintenance()), "node"), s.GetRevision())
	return nil
}

func countRow(name string, c *lofamov1.Count) []string {
	row := []string{name}
	for _, n := range []uint32{c.GetNormal() + c.GetSick() + c.GetFailed() + c.GetUnknown(), c.GetNormal(), c.GetSick(), c.GetFailed(), c.GetUnknown()} {
		row = append(row, strconv.FormatUint(uint64(n), 10))
	}
	return row
}
