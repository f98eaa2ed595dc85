package get

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// linkArgs is how a link is named on a command line.
const linkArgs = "NODE/DIRECTION"

// parseLinks reads links as n1-0-1/X+ or 1,0,1/X+, by either end.
func parseLinks(args []string) ([]*lofamov1.LinkName, error) {
	if len(args) == 0 {
		return nil, command.Usagef("%s is missing: want at least one link, such as n1-0-1/X+ or 1,0,1/X+", linkArgs)
	}
	var out []*lofamov1.LinkName
	for _, arg := range args {
		node, dir, ok := strings.Cut(arg, "/")
		if !ok || node == "" {
			return nil, command.Usagef("link %q: want %s, such as n1-0-1/X+ or 1,0,1/X+", arg, linkArgs)
		}
		if _, err := grid.ParseDirection(dir); err != nil {
			return nil, command.Usagef("link %q: %v", arg, err)
		}
		out = append(out, &lofamov1.LinkName{Node: node, Direction: dir})
	}
	return out, nil
}

// linksOnly refuses arguments that do not name links. The tests of the documentation check arguments with it.
func linksOnly(_ *cobra.Command, args []string) error {
	_, err := parseLinks(args)
	return err
}

// MaskCommand returns `lofamoctl mask`.
func MaskCommand(a *command.App) *cobra.Command {
	var reason string
	var force bool
	cmd := &cobra.Command{
		Use:   "mask " + linkArgs + "... --reason REASON",
		Short: "Keep messages off links, at both of their ends: all or none",
		Long: `Masks links: heartbeats and tests continue, so the supervisors judge the links as before, and messages take other
paths. A mask is in force at an end when no message waits there any more; 'lofamoctl get masks' shows the ends where
it is not in force yet. A mask stays until 'lofamoctl unmask', across restarts of all kinds and the replacement of a
node.

The supervisors refuse a mask that would cut nodes off from one another in the torus, unless --force is given.`,
		Example: "  lofamoctl mask n1-0-1/X+ --reason 'corrupts one frame in a thousand'\n  lofamoctl mask close-regions --dry-run",
		Args:    linksOnly,
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for people: 1 to 256 bytes")
	cmd.Flags().BoolVar(&force, "force", false, "even if nodes lose their last path through the torus")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		links, err := parseLinks(args)
		if err != nil {
			return err
		}
		if strings.TrimSpace(reason) == "" {
			return command.Usagef("--reason is missing: want a few words that say why")
		}
		return setMask(a, cmd.Context(), &lofamov1.SetMaskRequest{Links: links, Masked: true, Reason: reason, Force: force})
	}
	cmd.AddCommand(closeRegionsCommand(a))
	return cmd
}

// UnmaskCommand returns `lofamoctl unmask`.
func UnmaskCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:     "unmask " + linkArgs + "...",
		Short:   "Let links carry messages again: all or none",
		Long:    `Restores links at both of their ends. A link that a node has masked itself stays masked.`,
		Example: "  lofamoctl unmask n1-0-1/X+",
		Args:    linksOnly,
		RunE: func(cmd *cobra.Command, args []string) error {
			links, err := parseLinks(args)
			if err != nil {
				return err
			}
			return setMask(a, cmd.Context(), &lofamov1.SetMaskRequest{Links: links})
		},
	}
}

func setMask(a *command.App, ctx context.Context, req *lofamov1.SetMaskRequest) error {
	what, done := "unmask", "is restored"
	if req.GetMasked() {
		what, done = "mask", "is masked: "+req.GetReason()
	}
	return a.WithOperator(ctx, func(ctx context.Context, s command.Session) error {
		resp, err := s.SetMask(ctx, req)
		if err != nil {
			return fmt.Errorf("%s: %w", what, command.Plain(err))
		}
		for _, m := range resp.GetMasks() {
			a.Printf("%s %s\n", command.MaskedLink(m), done)
		}
		return nil
	})
}

func closeRegionsCommand(a *command.App) *cobra.Command {
	req := &lofamov1.CloseRegionsRequest{}
	cmd := &cobra.Command{
		Use:   "close-regions",
		Short: "Mask the links that close concave faulty regions",
		Long: `Finds obstacles of dead and masked links that may trap messages of the Chaos router for ever, and masks more links
until none is left. No node loses its last path by that; where masking links is not enough, --isolate gives up whole
nodes.`,
		Example: "  lofamoctl mask close-regions --dry-run\n  lofamoctl mask close-regions --reason 'until rack 7 is repaired'",
		Args:    command.Exactly(),
	}
	cmd.Flags().BoolVar(&req.DryRun, "dry-run", false, "only print the links that would be masked")
	cmd.Flags().BoolVar(&req.Isolate, "isolate", false, "give up whole nodes where masking links is not enough")
	cmd.Flags().StringVar(&req.Reason, "reason", "", "why, for people: 1 to 256 bytes")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !req.GetDryRun() && strings.TrimSpace(req.GetReason()) == "" {
			return command.Usagef("--reason is missing: want a few words that say why, or --dry-run")
		}
		return a.WithOperator(cmd.Context(), func(ctx context.Context, s command.Session) error {
			resp, err := s.CloseRegions(ctx, req)
			if err != nil {
				return fmt.Errorf("close regions: %w", command.Plain(err))
			}
			printClosing(a, resp, req.GetDryRun())
			return nil
		})
	}
	return cmd
}

func printClosing(a *command.App, resp *lofamov1.CloseRegionsResponse, dryRun bool) {
	concave := 0
	for _, r := range resp.GetRegions() {
		if r.GetConcave() {
			concave++
			a.Printf("concave: %s: messages turn round among %s\n", linkNames(r.GetLinks()), strings.Join(r.GetTrap(), " "))
		}
	}
	if concave == 0 && resp.GetCaught() == 0 {
		a.Printf("no faulty region is concave, of %s\n", fault.Plural(len(resp.GetRegions()), "region"))
		return
	}
	verb := "masked"
	if dryRun {
		verb = "would be masked"
	}
	for _, m := range resp.GetMasks() {
		a.Printf("%s %s\n", command.MaskedLink(m), verb)
	}
	for _, id := range resp.GetIsolated() {
		a.Printf("%s has no way through the torus then\n", id)
	}
	if resp.GetLeft() > 0 {
		a.Printf("messages may still be caught: --isolate gives up nodes where masking links is not enough\n")
	}
	if dryRun {
		a.Printf("dry run: nothing was changed\n")
	}
}

func linkNames(links []*lofamov1.LinkName) string {
	const most = 12
	var out []string
	for i, l := range links {
		if i == most {
			out = append(out, fmt.Sprintf("and %d more", len(links)-most))
			break
		}
		out = append(out, l.GetNode()+"/"+l.GetDirection())
	}
	return strings.Join(out, " ")
}

// getMasksCommand returns `lofamoctl get masks`.
func getMasksCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "masks",
		Aliases: []string{"mask"},
		Short:   "Links that carry no messages, with the reason and the state of the mask",
		Long: `Prints the links that the supervisors mask, and those that nodes have masked themselves. WAITING names the ends that
have not confirmed the mask yet; it is ? if no supervisor that answers reaches a leader.`,
		Args: command.Exactly(),
	}
	o := command.GetFormats(cmd, command.FormatTable, command.FormatJSON, command.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return command.Query(a, cmd, "get masks", o, func(ctx context.Context, s command.Session) (*lofamov1.ListMasksResponse, error) {
			return s.ListMasks(ctx)
		}, func(resp *lofamov1.ListMasksResponse) error {
			rows := maskRows(a, resp)
			if len(rows) == 1 {
				a.Printf("no link is masked\n")
				return nil
			}
			return a.Table(rows)
		})
	}
	return cmd
}

func maskRows(a *command.App, resp *lofamov1.ListMasksResponse) [][]string {
	rows := [][]string{{"NODE", "LINK", "PEER", "SINCE", "BY", "WAITING", "REASON"}}
	for _, m := range resp.GetMasks() {
		waiting := command.Dash(strings.Join(m.GetWaiting(), ","))
		if resp.GetStale() {
			waiting = "?"
		}
		rows = append(rows, []string{
			m.GetNode(), m.GetDirection(), m.GetPeer(), command.Minute(a, m.GetSince().AsTime()), m.GetBy(), waiting,
			command.Printable(m.GetReason()),
		})
	}
	for _, n := range resp.GetNodes() {
		for _, d := range n.GetOwn() {
			rows = append(rows, []string{n.GetNode(), d, "-", "-", n.GetNode(), "-", "the node's own word"})
		}
	}
	return rows
}
