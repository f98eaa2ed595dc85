package get

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/pkg/fault"
)

// getTopologyCommand returns `lofamoctl get topology`.
func getTopologyCommand(a *command.App) *cobra.Command {
	var improve bool
	cmd := &cobra.Command{
		Use:     "topology",
		Aliases: []string{"topo"},
		Short:   "The nodes: places, labels and addresses, spares",
		Long: `Prints the supervisors' topology. You can edit the output of -o yaml and give it to 'lofamoctl apply'.

The lines before the table rate the places of the nodes. The neighbours of a node are the witnesses of its death. A node is
exposed by a failure domain (a rack, switch or power feed, unless the topology names others) if all its witnesses lie in
that domain, and the node itself does not. --improve proposes steps that leave fewer nodes exposed. It changes
nothing: 'lofamoctl node improve' makes the steps.

If a node has a single witness although the torus has three nodes or more, a line names it with the reason, and the next
line the remedy. JSON and YAML have them as "singleWitness", which 'lofamoctl apply' ignores.`,
		Example: "  lofamoctl get topology\n  lofamoctl get topology -o yaml > topology.yaml\n  lofamoctl get topology --improve",
		Args:    command.Exactly(),
	}
	cmd.Flags().BoolVar(&improve, "improve", false, "propose better places instead of listing the nodes")
	o := command.GetFormats(cmd, command.FormatTable, command.FormatJSON, command.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if improve && o.Format.Structured() {
			return command.Usagef("--improve: want it without -o: the proposal is text")
		}
		return command.Query(a, cmd, "get topology", o, func(ctx context.Context, s command.Session) (*lofamov1.Topology, error) {
			return s.GetTopology(ctx)
		}, func(top *lofamov1.Topology) error {
			a.Printf("%s, failure domains %s, revision %d\n", sizeOf(top), strings.Join(top.GetDomainLabels(), " "), top.GetRevision())
			if err := printPlacement(a, top, improve); err != nil && improve {
				return fmt.Errorf("get topology: %w", err)
			} else if err != nil {
				a.Printf("places: not rated: %v\n", err)
			}
			if improve {
				return nil
			}
			return a.Table(topologyRows(top, wordsOf(top)))
		})
	}
	return cmd
}

// printPlacement rates the places of the nodes, and proposes better ones.
func printPlacement(a *command.App, top *lofamov1.Topology, improve bool) error {
	p, ids, err := command.Placement(top)
	if err != nil {
		return err
	}
	lines := append(qualityLines(p.Quality(), ids), command.SingleWitnessLines(top.GetSingleWitness())...)
	if improve {
		steps, err := proposalLines(p, ids)
		if err != nil {
			return err
		}
		lines = append(lines, steps...)
	}
	a.Printf("%s\n", strings.Join(lines, "\n"))
	return nil
}

func topologyRows(top *lofamov1.Topology, words command.Words) [][]string {
	rows := [][]string{{"NODE", "COORD", "SERVICE", "LABELS"}}
	if !words.Torus() {
		rows[0][1] = "NOTES"
	}
	for _, n := range top.GetNodes() {
		place := n.GetCoord()
		switch {
		case place == "":
			place = words.Spare
		case !words.Torus():
			place = "-"
		}
		rows = append(rows, []string{n.GetId(), place, command.Dash(strings.Join(n.GetService(), ",")),
			command.Dash(command.LabelText(n.GetLabels()))})
	}
	return rows
}

// ApplyCommand returns `lofamoctl apply`.
func ApplyCommand(a *command.App) *cobra.Command {
	var file string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Replace the topology by the one in a file",
		Long: `Replaces the topology by the one in a YAML or JSON file, in the format of 'lofamoctl get topology -o yaml', and prints
the changes. It makes all of them or, if anything is wrong, none.

A file with a revision applies only while the topology is still at that revision, so that it does not undo another
person's changes. A file without a revision replaces any topology.

To put a spare in the place of a broken node, give the spare that node's coord, and the node an empty one: the node is
a spare then.`,
		Example: `  lofamoctl get topology -o yaml > topology.yaml
  lofamoctl apply -f topology.yaml --dry-run
  lofamoctl apply -f topology.yaml`,
		Args: command.Exactly(),
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "the file; - for the standard input")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only check the topology, and print the changes")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if file == "" {
			return command.Usagef("-f is missing: want a file with a topology, or - for the standard input")
		}
		top, err := ReadTopology(file, cmd.InOrStdin())
		if err != nil {
			return err
		}
		return a.WithOperator(cmd.Context(), func(ctx context.Context, s command.Session) error {
			resp, err := s.ApplyTopology(ctx, &lofamov1.ApplyTopologyRequest{Topology: top, IfRevision: top.GetRevision(), DryRun: dryRun})
			if err != nil {
				return fmt.Errorf("apply: %w", command.Plain(err))
			}
			printChanges(a, resp, dryRun)
			return nil
		})
	}
	return cmd
}

func printChanges(a *command.App, resp *lofamov1.ApplyTopologyResponse, dryRun bool) {
	for _, c := range resp.GetChanges() {
		a.Printf("%s\n", c)
	}
	at := resp.GetTopology().GetRevision()
	switch n := len(resp.GetChanges()); {
	case n == 0:
		a.Printf("nothing changes: the topology is like that, at revision %d\n", at)
	case dryRun:
		a.Printf("dry run: nothing was changed, the topology is at revision %d\n", at)
	default:
		a.Printf("%s, the topology is at revision %d\n", fault.Plural(n, "change"), at)
	}
}

// maxTopologyFile bounds the file, in bytes.
const maxTopologyFile = 64 << 20

// ReadTopology reads a file strictly: unknown and double keys are refused.
func ReadTopology(file string, stdin io.Reader) (*lofamov1.Topology, error) {
	b, file, err := command.ReadBounded(file, stdin, maxTopologyFile)
	if err != nil {
		return nil, err
	}
	js, err := yaml.YAMLToJSONStrict(b)
	if err != nil {
		return nil, command.Usagef("%s: not YAML: %s", file, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	top := new(lofamov1.Topology)
	if err := protojson.Unmarshal(js, top); err != nil {
		return nil, command.Usagef("%s: not a topology: %s", file,
			command.Position.ReplaceAllString(strings.ReplaceAll(err.Error(), "\u00a0", " "), ""))
	}
	return top, nil
}

// LabelCommand returns `lofamoctl label`.
func LabelCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "label NODE KEY=VALUE|KEY-...",
		Short: "Add labels to a node, or remove them with KEY-",
		Long: `Changes labels of a node: KEY=VALUE adds one, KEY- removes it. Labels select nodes in lists and watches. Those that
are failure domains (rack, switch and power, unless the topology names others) tell which nodes may share a cause.`,
		Example: "  lofamoctl label n1-0-1 rack=r7 switch=s3\n  lofamoctl label 1,0,1 gpu-",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return command.Usagef("want NODE and at least one of KEY=VALUE and KEY-")
			}
			return nil
		},
		ValidArgsFunction: a.CompleteFirstNode,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		edits, err := parseLabels(args[1:])
		if err != nil {
			return err
		}
		return a.WithOperator(cmd.Context(), func(ctx context.Context, s command.Session) error {
			if err := label(a, ctx, s, args[0], edits); err != nil {
				return fmt.Errorf("label %s: %w", args[0], command.Plain(err))
			}
			return nil
		})
	}
	return cmd
}

// labelEdit sets or removes a label.
type labelEdit struct {
	key, value string
	remove     bool
}

func parseLabels(args []string) ([]labelEdit, error) {
	var out []labelEdit
	for _, arg := range args {
		key, value, set := strings.Cut(arg, "=")
		e := labelEdit{key: key, value: value}
		if !set {
			if e.key, e.remove = strings.CutSuffix(arg, "-"); !e.remove {
				return nil, command.Usagef("label %q: want KEY=VALUE or KEY-", arg)
			}
		}
		if err := errors.Join(fault.CheckLabelKey(e.key), fault.CheckLabelValue(e.value)); err != nil {
			return nil, command.Usage(err)
		}
		if slices.ContainsFunc(out, func(o labelEdit) bool { return o.key == e.key }) {
			return nil, command.Usagef("label %q: want each key once", e.key)
		}
		out = append(out, e)
	}
	return out, nil
}

// labelTries is the maximum number of attempts to write labels while others change the topology.
const labelTries = 5

func label(a *command.App, ctx context.Context, s command.Session, name string, edits []labelEdit) error {
	for try := 1; ; try++ {
		top, err := s.GetTopology(ctx)
		if err != nil {
			return err
		}
		n := command.TopologyNode(top, name)
		if n == nil {
			return command.Usagef("no node has that id or place")
		}
		if n.Labels == nil {
			n.Labels = make(map[string]string)
		}
		for _, e := range edits {
			if e.remove {
				delete(n.Labels, e.key)
			} else {
				n.Labels[e.key] = e.value
			}
		}
		resp, err := s.ApplyTopology(ctx, &lofamov1.ApplyTopologyRequest{Topology: top, IfRevision: top.GetRevision()})
		if status.Code(err) == codes.Aborted && try < labelTries {
			if err := command.Pause(ctx, command.ConflictPause(try)); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		printChanges(a, resp, false)
		return nil
	}
}

// sizeOf returns the number of nodes of an ordinary cluster, or the dims of a torus.
func sizeOf(top *lofamov1.Topology) string {
	if wordsOf(top).Torus() {
		return "dims " + top.GetDims()
	}
	placed := 0
	for _, n := range top.GetNodes() {
		if n.GetCoord() != "" {
			placed++
		}
	}
	return fault.Plural(placed, "node")
}

// wordsOf returns the words for the readers of a topology, which is an ordinary cluster if all its nodes with a place have enrolled.
func wordsOf(top *lofamov1.Topology) command.Words {
	return command.WordsOf(&lofamov1.ClusterInfo{Ordinary: !slices.ContainsFunc(top.GetNodes(), func(n *lofamov1.TopologyNode) bool {
		return n.GetCoord() != "" && !n.GetProved()
	})})
}
