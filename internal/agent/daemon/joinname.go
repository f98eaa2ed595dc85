package daemon

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/lofamo/lofamo/pkg/fault"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/durable"
)

// JoinName gives a node that enrols its name. An enrolled node keeps its name for as long as its state directory has the enrolment, however
// its host is called; note says that, or is "". Only Kubernetes or another authority renames it, by evidence that names the node. A new
// node has the configured name, or else that of its host.
func JoinName(a config.Agent) (named config.Agent, note string, err error) {
	return joinName(a, os.Hostname)
}

func joinName(a config.Agent, hostname func() (string, error)) (named config.Agent, note string, err error) {
	want, source := a.Node, "configuration"
	if want == "" {
		var host string
		host, err = hostname()
		want, source = fault.NodeID(host), "host"
	}
	enrolled := enrolledName(a.StateDir)
	switch {
	case a.Node != "" && (enrolled == "" || a.Join.NamesNode()):
		return a, "", nil
	case enrolled != "":
		if want != enrolled && err == nil {
			note = fmt.Sprintf("the %s's name is %q now, and this machine stays node %s: to rename it, run 'lofamoctl node leave %s --forget', "+
				"empty %s, and enrol it with a new token", source, want, enrolled, enrolled, a.StateDir)
		}
		a.Node = enrolled
		return a, note, nil
	case err != nil:
		return a, "", fmt.Errorf("node: given nothing, and the host's name cannot be read: %w", err)
	case fault.IsImageName(string(want)):
		// No error of the configuration, which would end the service: the host may get its name later in its start.
		return a, "", fmt.Errorf("node: given nothing, and the host's name is %q, which images give to many machines: want a name of its own, "+
			"by the key node, by --node, or by the host's name", want)
	}
	a.Node = want
	return a, "", nil
}

// enrolledName returns the name with which the node has enrolled; "": it has not, or its enrolment cannot be read.
func enrolledName(stateDir string) fault.NodeID {
	b, err := durable.Read(filepath.Join(stateDir, joinDir, joinAnswer), maxJoinFile)
	if err != nil {
		return ""
	}
	have, err := decodeJoined(b)
	if err != nil {
		return ""
	}
	return have.Node
}
