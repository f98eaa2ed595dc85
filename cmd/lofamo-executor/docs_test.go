package main

import (
	"testing"

	"github.com/lofamo/lofamo/internal/testing/docstest"
)

func TestCommandsOfThePages(t *testing.T) {
	docstest.Parses(t, "../..", "lofamo-executor", rootCommand)
}
