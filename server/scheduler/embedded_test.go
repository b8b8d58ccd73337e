package scheduler_test

import (
	"testing"

	"bivouac/server/scheduler"
	"bivouac/server/scheduler/schedulertest"
)

func TestEmbedded(t *testing.T) { schedulertest.Run(t, scheduler.Embedded{}) }
