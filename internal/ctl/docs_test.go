package ctl

import (
	"testing"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/testing/docstest"
)

func TestCommandsOfThePages(t *testing.T) {
	docstest.Parses(t, "../..", "lofamoctl", func() *cobra.Command { return newRoot(command.Env{}) })
}
