/* Every collective call of the MPI library, replaced by an error: preloaded by the tests.
 *
 * A library that is preloaded wins over libmpi for the names it defines.  None of these functions looks
 * at its arguments, so none is declared.
 */
#include <stdio.h>
#include <stdlib.h>

#define FORBID(name)                                                        \
    int name()                                                              \
    {                                                                       \
        fputs("forbidden collective call: " #name "\n", stderr);            \
        abort();                                                            \
    }

FORBID(MPI_Barrier) FORBID(MPI_Bcast) FORBID(MPI_Gather) FORBID(MPI_Gatherv) FORBID(MPI_Scatter)
FORBID(MPI_Scatterv) FORBID(MPI_Allgather) FORBID(MPI_Allgatherv) FORBID(MPI_Alltoall) FORBID(MPI_Alltoallv)
FORBID(MPI_Alltoallw) FORBID(MPI_Reduce) FORBID(MPI_Allreduce) FORBID(MPI_Reduce_scatter)
FORBID(MPI_Reduce_scatter_block) FORBID(MPI_Scan) FORBID(MPI_Exscan)
FORBID(MPI_Ibarrier) FORBID(MPI_Ibcast) FORBID(MPI_Igather) FORBID(MPI_Igatherv) FORBID(MPI_Iscatter)
FORBID(MPI_Iscatterv) FORBID(MPI_Iallgather) FORBID(MPI_Iallgatherv) FORBID(MPI_Ialltoall)
FORBID(MPI_Ialltoallv) FORBID(MPI_Ialltoallw) FORBID(MPI_Ireduce) FORBID(MPI_Iallreduce)
FORBID(MPI_Ireduce_scatter) FORBID(MPI_Ireduce_scatter_block) FORBID(MPI_Iscan) FORBID(MPI_Iexscan)
FORBID(MPI_Neighbor_allgather) FORBID(MPI_Neighbor_allgatherv) FORBID(MPI_Neighbor_alltoall)
FORBID(MPI_Neighbor_alltoallv) FORBID(MPI_Neighbor_alltoallw)
FORBID(MPI_Ineighbor_allgather) FORBID(MPI_Ineighbor_allgatherv) FORBID(MPI_Ineighbor_alltoall)
FORBID(MPI_Ineighbor_alltoallv) FORBID(MPI_Ineighbor_alltoallw)
FORBID(MPI_Comm_dup) FORBID(MPI_Comm_idup) FORBID(MPI_Comm_dup_with_info) FORBID(MPI_Comm_create)
FORBID(MPI_Comm_create_group) FORBID(MPI_Comm_split) FORBID(MPI_Comm_split_type)
FORBID(MPI_Win_create) FORBID(MPI_Win_allocate) FORBID(MPI_Win_allocate_shared) FORBID(MPI_Win_create_dynamic)
FORBID(MPI_Win_fence) FORBID(MPI_File_open)
