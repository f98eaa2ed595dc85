package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/agent/local"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// errEnough ends a watch after its first response.
var errEnough = errors.New("enough")

func (o *options) faultsCommand() *cobra.Command {
	var output string
	var follow bool
	c := &cobra.Command{
		Use:   "faults [NODE...]",
		Short: "Show this node's view of the fault map: itself and its neighbours, or the named nodes",
		Long: `Shows this node's view of the fault map, without a call to a supervisor: itself and its neighbours, or
the named nodes. The node asks the supervisors for named nodes while this command runs.

While the reachable supervisors have no quorum, they decide nothing: the answer is then marked STALE, with its age.`,
		RunE: func(c *cobra.Command, nodes []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("%w: --output: given %q: want table or json", errUsage, output)
			}
			for _, n := range nodes {
				if !servicenet.ValidID(n) {
					return fmt.Errorf("%w: node: given %q: want the id of a node", errUsage, n)
				}
			}
			cfg, err := o.load()
			if err != nil {
				return err
			}
			write := writeFaults
			if output == "json" {
				write = writeFaultsJSON
			}
			if !follow {
				return faultsNow(c, cfg.JobsSocket(), nodes, write)
			}
			err = local.Watch(c.Context(), cfg.JobsSocket(), nodes, func(r *lofamov1.WatchFaultsResponse) error {
				return write(c.OutOrStdout(), r)
			})
			if interrupted := c.Context().Err() != nil; interrupted {
				err = nil
			}
			return err
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on with every change")
	return c
}

// tellWithin bounds the wait for the first update about a node.
const tellWithin = 5 * time.Second

// faultsNow writes the known faults once all updates have arrived, or those that arrived in time.
func faultsNow(c *cobra.Command, socket string, nodes []string, write func(io.Writer, *lofamov1.WatchFaultsResponse) error) error {
	ctx, cancel := context.WithTimeout(c.Context(), tellWithin)
	defer cancel()
	known := make(map[string]*lofamov1.LocalNode)
	var last *lofamov1.WatchFaultsResponse
	err := local.Watch(ctx, socket, nodes, func(r *lofamov1.WatchFaultsResponse) error {
		for _, n := range r.GetNodes() {
			known[n.GetId()] = n
		}
		if last = r; r.GetPending() {
			return nil
		}
		return errEnough
	})
	if c.Context().Err() == nil && ctx.Err() != nil && last != nil {
		err = errEnough // no further update came
	}
	if !errors.Is(err, errEnough) {
		return err
	}
	last.Nodes = nil
	for _, id := range slices.Sorted(maps.Keys(known)) {
		last.Nodes = append(last.Nodes, known[id])
	}
	return write(c.OutOrStdout(), last)
}

func writeFaultsJSON(out io.Writer, r *lofamov1.WatchFaultsResponse) error {
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(r)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s\n", b)
	return err
}

// writeFaults writes a response for people.
func writeFaults(out io.Writer, r *lofamov1.WatchFaultsResponse) error {
	var b strings.Builder
	if age := r.GetSupervisorsAge(); age == nil {
		b.WriteString("no message from a supervisor yet: nothing is known\n")
	} else {
		fmt.Fprintf(&b, "of revision %d; last message from a supervisor %s ago\n", r.GetRevision(), age.AsDuration().Round(time.Millisecond))
	}
	if r.GetStale() {
		since := "none has had one since this node's host half started: the age of this view is unknown"
		if age := r.GetStaleAge(); age != nil {
			since = fmt.Sprintf("the last quorum was %s ago: this view may be that old", age.AsDuration().Round(100*time.Millisecond))
		}
		fmt.Fprintf(&b, "STALE: the reachable supervisors have no quorum; %s\n", since)
	}
	if r.GetPending() {
		b.WriteString("some requested nodes are still missing\n")
	}
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "NODE\tSTATE\tCAUSE\tFAULTS\tGROUPS") // a Builder never fails
	for _, n := range r.GetNodes() {
		var faults []string
		for _, f := range n.GetFaults() {
			faults = append(faults, f.GetComponent()+" "+f.GetState().String())
		}
		if n.GetMaintenance() {
			faults = append(faults, "(maintenance)")
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", n.GetId(), n.GetState(), n.GetCause(), dash(strings.Join(faults, ", ")),
			dash(strings.Join(n.GetGroups(), ", ")))
	}
	_ = t.Flush()
	_, err := io.WriteString(out, b.String())
	return err
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
