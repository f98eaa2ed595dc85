// Command remediator receives LO|FA|MO's webhooks and runs one program for the requested actions. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/lofamo/lofamo/examples/remediator/receiver"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := serve(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "remediator:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("remediator", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:8443", "address to listen at")
	cert, key := flags.String("cert", "", "certificate, PEM; without one it speaks plain http"), flags.String("key", "", "its key, PEM")
	secretFiles := flags.String("secrets", "", "files with secrets, with commas between")
	state := flags.String("state", "remediator.json", "file that stores tokens and finished actions")
	program := flags.String("run", "", "program that is run with the arguments do|undo, node and component")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var secrets [][]byte
	for file := range strings.SplitSeq(*secretFiles, ",") {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		s, err := receiver.ParseSecret(string(b))
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		secrets = append(secrets, s)
	}
	if *program == "" {
		return errors.New("-run: want a program")
	}
	r, err := receiver.New(*state, secrets, run(*program), slog.Default())
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: r, ReadTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10}
	slog.Info("listening", "address", l.Addr().String())
	go func() {
		<-ctx.Done()
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_ = srv.Shutdown(end)
	}()
	if *cert != "" {
		err = srv.ServeTLS(l, *cert, *key)
	} else {
		err = srv.Serve(l)
	}
	if errors.Is(err, http.ErrServerClosed) {
		r.Wait()
		return nil
	}
	return err
}

// tempFail is the exit code of a program that has changed nothing (EX_TEMPFAIL).
const tempFail = 75

// run returns a Remediate that runs the program for a message. The program exits with 0 for success, with 75 if it
// changed nothing, and with anything else if it changed something.
func run(program string) receiver.Remediate {
	return func(ctx context.Context, m receiver.Message) (string, string) {
		c := exec.CommandContext(ctx, program, m.Action, m.Target.Node, m.Target.Component)
		// Only PATH comes from our environment. A cancelled program is killed with its process group, and no
		// grandchild delays the answer.
		c.Env = append([]string{"PATH=" + os.Getenv("PATH")}, "LOFAMO_KEY="+m.IdempotencyKey, "LOFAMO_CLUSTER="+m.Cluster,
			"LOFAMO_STATE="+m.Fault.State, "LOFAMO_CAUSE="+m.Fault.Cause)
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
		c.WaitDelay = 5 * time.Second
		out, err := c.CombinedOutput()
		detail := strings.TrimSpace(string(out[max(0, len(out)-200):]))
		var exit *exec.ExitError
		switch {
		case err == nil:
			return receiver.Done, detail
		case errors.As(err, &exit) && exit.ExitCode() == tempFail:
			return receiver.Unchanged, detail
		case errors.As(err, &exit) && exit.Exited():
			return receiver.Partly, fmt.Sprintf("%v: %s", err, detail)
		case c.Process == nil:
			return receiver.Unchanged, err.Error() // it never ran
		default:
			return receiver.Unknown, err.Error()
		}
	}
}
