package docstest

import (
	_ "embed"
	"fmt"
	"strings"
)

//go:embed commands.txt
var list string

// How names the test or script that runs a command.
type How struct {
	Package, Test string // a test: its directory from the top of the repository, and its function
	CI            bool   // .ci/run does
	Machines      string // reason why no test runs it: it needs more than this machine
}

// Runs returns how each command is run.
func Runs() (map[string]How, error) { return parseRuns(list) }

func parseRuns(list string) (map[string]How, error) {
	out := make(map[string]How)
	var how How
	for i, line := range strings.Split(list, "\n") {
		command, indented := strings.CutPrefix(line, "    ")
		kind, rest, _ := strings.Cut(line, " ")
		words := strings.Fields(rest)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case indented && how == How{}:
			return nil, fmt.Errorf("line %d: %q stands below nothing", i+1, command)
		case indented:
			if _, twice := out[command]; twice {
				return nil, fmt.Errorf("line %d: %q stands there twice", i+1, command)
			}
			out[command] = how
		case kind == "test" && len(words) == 2:
			how = How{Package: words[0], Test: words[1]}
		case kind == "ci" && rest == "":
			how = How{CI: true}
		case kind == "machines" && rest != "":
			how = How{Machines: rest}
		default:
			return nil, fmt.Errorf(`line %d: %q: want "test PACKAGE NAME", "ci", "machines WHY", or a command indented by four spaces`, i+1, line)
		}
	}
	return out, nil
}
