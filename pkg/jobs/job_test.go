package jobs

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/testing/requirements"
)

const participantEnv = "LOFAMO_TEST_PARTICIPANT"

// TestParticipantsOfContainers: the first process of each container has the id 1, but two of them are two participants.
func TestParticipantsOfContainers(t *testing.T) {
	if os.Getenv(participantEnv) != "" {
		fmt.Printf("%d is %s\n", os.Getpid(), participant())
		_, _ = io.Copy(io.Discard, os.Stdin) // the number of a deleted namespace may be reused
		return
	}
	if out, err := exec.Command("unshare", "--pid", "--fork", "--mount-proc", "true").CombinedOutput(); err != nil {
		requirements.Missing(t, "no PID namespaces: %v: %s", err, out)
	}
	names := map[string]bool{participant(): true}
	for range 2 {
		cmd := exec.Command("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", os.Args[0], "-test.run", "^"+t.Name()+"$",
			"-test.count", "1")
		cmd.Env = append(os.Environ(), participantEnv+"=1")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = in.Close()
			_, _ = io.Copy(io.Discard, out)
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		}()
		line, err := bufio.NewReader(out).ReadString('\n')
		name, first := strings.CutPrefix(strings.TrimSpace(line), "1 is ")
		if err != nil || !first || !strings.HasPrefix(name, "1.") || names[name] {
			t.Errorf("a first process says %q, %v: want another name than of %v", line, err, names)
		}
		names[name] = true
	}
}
