/* What the thread team costs: waking it, and its barrier. */
#include "parallel.h"

static void barriers(void *context, const struct rk_member *member)
{
    for (int i = *(const int *)context; i > 0; i--)
        rk_barrier(member);
}

/* `calls` calls of the team, each of which meets at `count` barriers. */
void team_run(int threads, int calls, int count)
{
    rk_team_insist(1);
    for (; calls > 0; calls--)
        rk_team_run(threads, 0, barriers, &count);
    rk_team_insist(0);
}
