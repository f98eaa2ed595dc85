package get

import (
	"fmt"
	"strings"

	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// Bounds of the text about a placement.
const (
	maxExposed = 5  // nodes named for each label key
	maxSteps   = 32 // of a proposal
)

// qualityLines rates a placement, one line for the witnesses and one for each label key that nodes have.
func qualityLines(q grid.Quality, ids []string) []string {
	if len(ids) == 0 {
		return []string{"no node has a place yet"}
	}
	out := []string{"witnesses: each node has at least " + fmt.Sprint(q.Witnesses)}
	for _, k := range q.Keys {
		var named []string
		for i, e := range k.Exposed {
			if i == maxExposed {
				named = append(named, fmt.Sprintf("and %d more", len(k.Exposed)-i))
				break
			}
			named = append(named, fmt.Sprintf("%s by %s=%s", ids[e.Node], k.Key, e.Value))
		}
		switch n := len(k.Exposed); {
		case n == 1:
			out = append(out, fmt.Sprintf("%s: 1 node is exposed: %s", k.Key, named[0]))
		case n > 1:
			out = append(out, fmt.Sprintf("%s: %d nodes are exposed: %s", k.Key, n, strings.Join(named, ", ")))
		case k.Least > 1:
			line := fmt.Sprintf("%s: each node has witnesses in at least %d of %s", k.Key, k.Least,
				fault.Plural(k.Domains+k.Unlabelled, "domain"))
			if k.Unlabelled > 0 {
				line += fmt.Sprintf("; %s without the label, each a domain of its own", fault.Plural(k.Unlabelled, "node"))
			}
			out = append(out, line)
		default:
			out = append(out, fmt.Sprintf("%s: no node is exposed; all witnesses of %s lie in one of %s", k.Key, ids[k.Worst],
				fault.Plural(k.Domains, "domain")))
		}
	}
	if len(q.Keys) == 0 {
		out = append(out, "failure domains: no node has a label for one")
	}
	return out
}

// proposalLines names the steps to a better placement.
func proposalLines(p *grid.Placement, ids []string) ([]string, error) {
	before := p.Quality().Exposed()
	if before == 0 {
		return []string{"proposal: none, because no node is exposed by a failure domain"}, nil
	}
	better, steps, err := p.Improve(maxSteps)
	if err != nil {
		return nil, err
	}
	if len(steps) == 0 {
		return []string{"proposal: none, because no single step leaves fewer nodes exposed"}, nil
	}
	out := []string{fmt.Sprintf("proposal: %s, after which %d instead of %d are exposed", fault.Plural(len(steps), "step"),
		better.Quality().Exposed(), before)}
	moves := false
	for i, s := range steps {
		moves = moves || s.With < 0
		out = append(out, fmt.Sprintf("  %d. %s", i+1, command.StepText(s, ids)))
	}
	if moves {
		out = append(out, "  dims become "+better.Dims().String())
	}
	return append(out, "nothing was changed: `lofamoctl node improve` makes the steps"), nil
}
