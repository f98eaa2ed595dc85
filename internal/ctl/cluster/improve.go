package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/program"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// maxImproving bounds the steps of one call.
const maxImproving = 32

func improveCommand(a *command.App) *cobra.Command {
	im := improvement{app: a}
	cmd := &cobra.Command{
		Use:   "improve",
		Short: "Give nodes better places, step by step, so that failure domains take fewer witnesses",
		Long: `Carries out what 'lofamoctl get topology --improve' proposes, while the cluster runs. Each step moves one node to an empty
place, or lets two nodes exchange theirs, and leaves fewer nodes exposed. The next step begins when the moved nodes and
all changed links are NORMAL, and no other node has a new fault. Otherwise the command stops, and names the steps
that it made and those left. An interrupt (Ctrl-C) ends it after the present step. Call it again to continue: each step
follows from the present topology alone.`,
		Example: `  lofamoctl node improve --dry-run
  lofamoctl node improve --steps 1`,
		Args: command.Exactly(),
	}
	f := cmd.Flags()
	f.BoolVar(&im.dryRun, "dry-run", false, "only print the steps")
	f.IntVar(&im.steps, "steps", maxImproving, "largest number of steps")
	program.DurationVar(f, &im.wait, "wait", moveWait, "time limit of each step, until its links are NORMAL")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if im.steps < 1 || im.steps > maxImproving {
			return command.Usagef("--steps %d: want 1 to %d", im.steps, maxImproving)
		}
		if im.wait <= 0 {
			return command.Usagef("--wait %v: want a positive time such as 1m", im.wait)
		}
		interrupted := cmd.Context()
		return a.WithOperator(context.WithoutCancel(interrupted), func(ctx context.Context, s command.Session) error {
			return im.run(ctx, interrupted, s)
		})
	}
	return cmd
}

// improvement carries out steps to a better placement.
type improvement struct {
	app    *command.App
	dryRun bool
	steps  int
	wait   time.Duration

	done    int
	changed int // how often somebody else has changed the topology
}

// maxChanged bounds the tries after changes by others.
const maxChanged = 5

// run makes the steps. Calls go on when the command is interrupted, until the step is done.
func (im *improvement) run(ctx, interrupted context.Context, s command.Session) error {
	for im.done < im.steps {
		st, err := readStep(ctx, s, nil)
		if err != nil {
			return im.stopped(-1, command.Plain(err))
		}
		steps, ids, err := im.propose(st.top)
		if err != nil || len(steps) == 0 || im.dryRun {
			return err
		}
		left := len(steps)
		if interrupted.Err() != nil {
			return im.stopped(left, interrupted.Err())
		}
		text := command.StepText(steps[0], ids)
		st.moves = movesOf(steps[0], ids)
		err = st.commit(ctx, s)
		if status.Code(err) == codes.Aborted && im.changed < maxChanged {
			im.changed++
			select { // somebody has changed the topology, and may not have finished
			case <-interrupted.Done():
			case <-time.After(moveLook):
			}
			continue
		}
		if err != nil {
			return im.stopped(left, fmt.Errorf("%s: %w", text, plainMove(err)))
		}
		im.done++
		im.app.Printf("step %d: %s\n", im.done, text)
		took, err := st.await(ctx, im.app, s, im.wait)
		if err != nil {
			return im.stopped(left-1, fmt.Errorf("step %d was carried out, but its result is not healthy: %w", im.done, err))
		}
		im.app.Printf("  all its links are NORMAL after %s\n", took)
	}
	st, err := readStep(ctx, s, nil)
	if err == nil {
		_, _, err = im.propose(st.top)
	}
	return err
}

// propose prints the present rating, and returns the steps that are left. In a dry run it prints these too.
func (im *improvement) propose(top *lofamov1.Topology) ([]grid.Step, []string, error) {
	p, ids, err := command.Placement(top)
	if err != nil {
		return nil, nil, fmt.Errorf("improve: %w", err)
	}
	exposed := p.Quality().Exposed()
	better, steps, err := p.Improve(im.steps - min(im.done, im.steps-1))
	if err != nil {
		return nil, nil, fmt.Errorf("improve: %w", err)
	}
	switch {
	case exposed == 0:
		im.app.Printf("no node is exposed by a failure domain: nothing is left to do\n")
	case len(steps) == 0:
		im.app.Printf("%s exposed, and no single step leaves fewer\n", nodesAre(exposed))
	case im.dryRun || im.done == 0 || im.done == im.steps:
		im.app.Printf("%s exposed; after %s: %d\n", nodesAre(exposed), fault.Plural(len(steps), "more step"), better.Quality().Exposed())
	}
	if len(steps) == 0 {
		for _, line := range command.SingleWitnessLines(top.GetSingleWitness()) {
			im.app.Printf("%s\n", line)
		}
	}
	if im.dryRun {
		for i, st := range steps {
			im.app.Printf("  %d. %s\n", i+1, command.StepText(st, ids))
		}
	}
	return steps, ids, nil
}

func nodesAre(n int) string {
	if n == 1 {
		return "1 node is"
	}
	return fmt.Sprintf("%d nodes are", n)
}

// stopped returns the error of a command that ends early; left are the steps of the proposal that are not made, negative:
// unknown.
func (im *improvement) stopped(left int, why error) error {
	rest := ""
	if left >= 0 {
		rest = fmt.Sprintf(", %d left", left)
	}
	return fmt.Errorf("improve: %s made%s: %w; call it again to continue", fault.Plural(im.done, "step"), rest, why)
}

// movesOf returns the moves of a step.
func movesOf(s grid.Step, ids []string) []*lofamov1.NodeMove {
	out := []*lofamov1.NodeMove{{Node: ids[s.Node], To: s.To.String()}}
	if s.With >= 0 {
		out = append(out, &lofamov1.NodeMove{Node: ids[s.With], To: s.From.String()})
	}
	return out
}
