// Command lofamoctl is the users' command line: it shows the fault map of a cluster, and makes
// clusters on one machine. The commands themselves are in internal/ctl.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/lofamo/lofamo/internal/ctl"
	"github.com/lofamo/lofamo/internal/ctl/command"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second Ctrl-C ends the program at once, even during a clean-up.
	context.AfterFunc(ctx, stop)
	os.Exit(ctl.Run(ctx, os.Args[1:], command.System()))
}
