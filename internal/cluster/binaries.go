package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const (
	agentProgram      = "lofamo-agent"
	supervisorProgram = "lofamo-supervisor"
	// formerSupervisor is the name of that program in builds of earlier versions.
	formerSupervisor = "supervisor"
)

// FindBinaries returns the directory that holds the agent's and the supervisor's programs: dir if
// given, else $LOFAMO_BIN_DIR, else that of the running program.
func FindBinaries(dir string) (string, error) {
	if dir == "" {
		dir = os.Getenv(EnvBinDir)
	}
	if dir == "" {
		self, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("find the programs beside this one: %w", err)
		}
		dir = filepath.Dir(self)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("programs in %s: %w", dir, err)
	}
	for _, name := range []string{agentProgram, supervisorIn(abs)} {
		path := filepath.Join(abs, name)
		if st, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("program %s: %w (build it with `make build`; --bin-dir or $%s names the directory)", path,
				errors.Unwrap(err), EnvBinDir)
		} else if st.Mode()&0o111 == 0 || st.IsDir() {
			return "", fmt.Errorf("program %s: not a program that can be run", path)
		}
	}
	return abs, nil
}

// supervisorIn returns the name of the supervisor's program in a directory: that of an earlier build if only it exists.
func supervisorIn(dir string) string {
	if _, err := os.Stat(filepath.Join(dir, supervisorProgram)); err == nil {
		return supervisorProgram
	}
	if _, err := os.Stat(filepath.Join(dir, formerSupervisor)); err == nil {
		return formerSupervisor
	}
	return supervisorProgram
}
