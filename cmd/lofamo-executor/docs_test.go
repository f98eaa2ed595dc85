package main

import (
	"testing"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/internal/docstest"
)

func TestCommandsOfThePages(t *testing.T) {
	docstest.Parses(t, "../..", "lofamo-executor", func() *cobra.Command { return rootCommand() })
}
