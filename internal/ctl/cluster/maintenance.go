package cluster

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/program"
)

// MaintenanceCommand returns `lofamoctl maintenance`.
func MaintenanceCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "maintenance start|end|list",
		Short: "Mark nodes on which somebody works",
		Long: `The map shows a node under maintenance with all its faults and the mark beside it, and no response acts on its faults.
A mark ends when somebody ends it, or when its time is over.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			return command.Usagef("maintenance %s: want start, end or list", strings.Join(args, " "))
		},
	}
	cmd.AddCommand(maintenanceStartCommand(a), maintenanceEndCommand(a), maintenanceListCommand(a))
	return cmd
}

// someNodes requires at least one node.
func someNodes(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return command.Usagef("NODE is missing: want at least one id or coordinates")
	}
	return nil
}

func maintenanceStartCommand(a *command.App) *cobra.Command {
	var reason string
	var lasting time.Duration
	cmd := &cobra.Command{
		Use:   "start NODE... --reason REASON",
		Short: "Mark nodes, or change their marks: all or none",
		Example: "  lofamoctl maintenance start n1-0-1 --reason 'new fan' --for 2h\n" +
			"  lofamoctl maintenance start 0,0,1 1,0,1 --reason 'firmware'",
		Args:              someNodes,
		ValidArgsFunction: a.CompleteNodes,
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for people: 1 to 256 bytes")
	program.DurationVar(cmd.Flags(), &lasting, "for", 0, "duration, 1m to 720h (default until somebody ends it)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if strings.TrimSpace(reason) == "" {
			return command.Usagef("--reason is missing: want a few words that say why")
		}
		req := &lofamov1.SetMaintenanceRequest{Nodes: args, Reason: reason}
		if cmd.Flags().Changed("for") {
			req.Duration = durationpb.New(lasting)
		}
		return a.WithOperator(cmd.Context(), func(ctx context.Context, s command.Session) error {
			resp, err := s.SetMaintenance(ctx, req)
			if err != nil {
				return fmt.Errorf("start maintenance: %w", command.Plain(err))
			}
			for _, m := range resp.GetMaintenance() {
				a.Printf("%s is under maintenance until %s: %s\n", m.GetNode(), until(a, m), command.Printable(m.GetReason()))
			}
			return nil
		})
	}
	return cmd
}

// until is the end of a mark.
func until(a *command.App, m *lofamov1.Maintenance) string {
	if m.GetUntil() == nil {
		return "it is ended"
	}
	return command.Minute(a, m.GetUntil().AsTime())
}

func maintenanceEndCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:               "end NODE...",
		Short:             "Remove the marks: all or none",
		Example:           "  lofamoctl maintenance end n1-0-1",
		Args:              someNodes,
		ValidArgsFunction: a.CompleteNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.WithOperator(cmd.Context(), func(ctx context.Context, s command.Session) error {
				if _, err := s.EndMaintenance(ctx, &lofamov1.EndMaintenanceRequest{Nodes: args}); err != nil {
					return fmt.Errorf("end maintenance: %w", command.Plain(err))
				}
				for _, name := range args { // coordinates have commas
					a.Printf("%s is no longer under maintenance\n", name)
				}
				return nil
			})
		},
	}
}

func maintenanceListCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "Nodes under maintenance, with their states", Args: command.Exactly()}
	o := command.AddOutputFlag(cmd, command.FormatTable, command.FormatJSON, command.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return command.Query(a, cmd, "list maintenance", o,
			func(ctx context.Context, s command.Session) (*lofamov1.ListNodesResponse, error) {
				return s.ListNodes(ctx, &lofamov1.ListNodesRequest{FieldSelector: "maintenance=true", Brief: true})
			}, func(resp *lofamov1.ListNodesResponse) error {
				if len(resp.GetNodes()) == 0 {
					a.Printf("no node is under maintenance\n")
					return nil
				}
				rows := [][]string{{"NODE", "COORD", "STATE", "SINCE", "UNTIL", "BY", "REASON"}}
				for _, n := range resp.GetNodes() {
					m := n.GetMaintenance()
					until := "-"
					if m.GetUntil() != nil {
						until = command.Minute(a, m.GetUntil().AsTime())
					}
					coord := n.GetCoord()
					if n.GetSpare() {
						coord = "spare"
					}
					rows = append(rows, []string{n.GetId(), coord, n.GetState().String(), command.Minute(a, m.GetSince().AsTime()), until, m.GetBy(),
						m.GetReason()})
				}
				return a.Table(rows)
			})
	}
	return cmd
}
